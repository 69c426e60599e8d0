package replay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/rules"
)

// writeLog writes a combined log of n lines, of 100,000 clients by Zipf's law, 2,000 lines in each second.
func writeLog(b *bufio.Writer, n int) {
	r := rand.New(rand.NewPCG(1, 2))
	clients := rand.NewZipf(r, 1.2, 10, 99_999)
	at := time.Date(2026, 10, 10, 0, 0, 0, 0, time.UTC)
	for i := range n {
		k := clients.Uint64()
		fmt.Fprintf(b, "10.%d.%d.7 - - [%s] \"GET /api/orders/%d?page=2 HTTP/1.1\" 200 5316 \"https://shop.example.org/\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0\"\n",
			k>>8, k&255, at.Add(time.Duration(i/2000)*time.Second).Format("02/Jan/2006:15:04:05 -0700"), k%1000)
	}
}

// BenchmarkReplay replays STINT_LINES lines (default 200,000) of a combined log by a limit for each client.
// It reports lines per second of processor time, which other work on the machine does not change much, and
// per second.
func BenchmarkReplay(b *testing.B) {
	lines := 200_000
	if text := os.Getenv("STINT_LINES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			b.Fatalf("STINT_LINES is %q, want a positive number", text)
		}
		lines = n
	}
	path := b.TempDir() + "/access.log"
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	text := bufio.NewWriter(file)
	writeLog(text, lines)
	if err := errors.Join(text.Flush(), file.Close()); err != nil {
		b.Fatal(err)
	}
	set, err := rules.Parse("bench", []byte("limits:\n  - {name: per-ip, match: {path: /api/*}, key: [ip], rate: 5/s, burst: 10}\n"))
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	began, before := time.Now(), processorTime(b)
	for range b.N {
		report, err := Run(context.Background(), Options{
			Set: set, Logs: []Log{{Name: path, Open: func() (io.ReadCloser, error) { return os.Open(path) }}},
		})
		if err != nil {
			b.Fatal(err)
		}
		if report.Requests != int64(lines) || report.Refused == 0 || report.Admitted == 0 {
			b.Fatalf("%+v", report)
		}
	}
	n := float64(lines) * float64(b.N)
	b.ReportMetric(n/(processorTime(b)-before).Seconds(), "lines/cpu-s")
	b.ReportMetric(n/time.Since(began).Seconds(), "lines/s")
}

// processorTime is what this process has used of the processors.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
