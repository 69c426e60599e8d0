// Command stint is the rate limiter as a service, and the tools around it.
package main

import (
	"os"
	_ "time/tzdata" // time zones of limits, also where the system has none, as in a small container
)

func main() { os.Exit(run(arguments(os.Args), os.Stdin, os.Stdout, os.Stderr)) }
