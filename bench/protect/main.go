// Protect shows what a throttle does for one server of two cores, with real processes: the server,
// whose handlers compute, and this one, which sends it requests at random times, whether or not
// it answers.
//
//	go run ./protect mixed [-seconds 15]     routes of 1, 10 and 500 ms, mixed and drifting
//	go run ./protect culprit [-seconds 10]   one request of 10 s among cheap ones at 80 % load
//
// It prints a table of what was seen and asserts nothing: on a machine that does other work as
// well, compare rows of one run.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args[2:]); err != nil {
			log.Fatal("protect: ", err)
		}
		return
	}
	flags := flag.NewFlagSet("protect", flag.ExitOnError)
	shows := map[string]func(time.Duration) error{"mixed": showMixed, "culprit": showCulprit}
	if len(os.Args) < 2 || shows[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "protect: say what to show: mixed or culprit")
		os.Exit(2)
	}
	seconds := flags.Int("seconds", 12, "length of each run")
	_ = flags.Parse(os.Args[2:])
	if err := shows[os.Args[1]](time.Duration(*seconds) * time.Second); err != nil {
		log.Fatal("protect: ", err)
	}
}
