// Command a is a root.
package main

import "github.com/stint-io/stint/internal/x"

func main() { x.ByCommand() }
