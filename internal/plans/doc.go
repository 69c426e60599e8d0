// Package plans knows which customer has which plan: by the limits file and a CSV file, and by changes that are made
// while it runs, which servers that share a store see within two seconds, and which are noted with who made them.
//
// It knows plans by their names, and neither limits nor counters.
package plans
