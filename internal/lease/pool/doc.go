// Package pool has the bucket of what a coordinator has not lent, and where a site's capacity comes
// from. It is arithmetic on one resource, with time passed in, and knows no accounts.
package pool
