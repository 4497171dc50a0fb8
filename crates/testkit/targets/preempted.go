// Goroutines, many more than threads, that compute the same number again and again without a call, and others that
// climb up and down stacks that grow.
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

// All succeed, and whether one did is known from the flags alone: a goroutine is most often stopped just behind it.
//
//go:noinline
func swaps(n uint64) uint64 {
	var place, done uint64
	for i := uint64(0); i < n; i++ {
		if atomic.CompareAndSwapUint64(&place, i, i+1) {
			done++
		}
	}
	return done
}

// Each call looks whether the stack is large enough, and often it is not.
//
//go:noinline
func climb(n int, a uint64) uint64 {
	var room [24]uint64
	room[n%24] = a
	if n == 0 {
		return room[a%24]
	}
	return climb(n-1, a*31+room[n%24]) ^ uint64(n)
}

var runs, climbs, bad atomic.Int64

func work(want uint64) {
	for {
		if spin(1, 2, 3, 4, 4_000_000) != want {
			bad.Add(1)
		}
		if swaps(1_000_000) != 1_000_000 {
			bad.Add(1)
		}
		runs.Add(1)
	}
}

func up(want uint64) {
	done := make(chan uint64)
	for {
		go func() { done <- climb(300, 7) }()
		if <-done != want {
			bad.Add(1)
		}
		climbs.Add(1)
	}
}

func main() {
	runtime.GOMAXPROCS(2)
	want := spin(1, 2, 3, 4, 4_000_000)
	high := climb(300, 7)
	for i := 0; i < 4; i++ {
		go up(high)
	}
	for i := 0; i < 32; i++ {
		go work(want)
	}
	fmt.Printf("ready pid=%d\n", os.Getpid())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Printf("totals runs=%d climbs=%d bad=%d\n", runs.Load(), climbs.Load(), bad.Load())
	}
}
