// Package usage counts what was admitted by limit, key and hour, and merges what several processes counted, so
// that nothing is counted twice and nothing is lost but what the package says.
//
// A [Meter] counts in tables of one hour. Each table has an origin, a random number that no other table has,
// and what it reports is the whole of what it has counted so far. A collector of the reports takes the larger of
// what it has and what it is told for each origin ([store.Records.Raise]), and adds origins up. A report that
// comes twice, late or out of order therefore changes nothing.
//
// With a folder the tables are files that are mapped into memory: what a request added is there before it is
// answered, and stays there when the process is killed at any moment. The next process with the folder reports
// it. A machine that loses its power loses what its kernel had not written, which is some 30 s at most.
// Without a folder a process that is killed loses what it had not reported, a second.
//
// Processes that share records report to one table. Those with records of their own are asked when usage is read:
// [History] merges the marks of all, in the order of their keys.
//
// It decides nothing, and knows neither HTTP nor what a limit is for.
package usage
