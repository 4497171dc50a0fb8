// Goroutines, many more than threads, that compute the same number again and again without a call.
//
// Go's runtime stops them by a signal at any instruction of the loop and parks them there.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

//go:noinline
func spin(a, b, c, d uint64, n int) uint64 {
	for i := 0; i < n; i++ {
		a ^= b
		b += c
		c ^= d
		d += a
		a = a<<7 | a>>57
		b ^= a
		c += b
		d ^= c
		d = d<<3 | d>>61
	}
	return a + b + c + d
}

var runs, bad atomic.Int64

func work(want uint64) {
	for {
		if spin(1, 2, 3, 4, 4_000_000) != want {
			bad.Add(1)
		}
		runs.Add(1)
	}
}

func main() {
	runtime.GOMAXPROCS(2)
	want := spin(1, 2, 3, 4, 4_000_000)
	for i := 0; i < 32; i++ {
		go work(want)
	}
	fmt.Printf("ready pid=%d\n", os.Getpid())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Printf("totals runs=%d bad=%d\n", runs.Load(), bad.Load())
	}
}
