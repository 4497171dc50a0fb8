// Functions of many shapes on one goroutine, which stays on the first thread; its stack grows and is copied.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
)

var sink int

func init() { runtime.LockOSThread() }

//go:noinline
func leaf(n int) int { return n + sink }

//go:noinline
func deep(n int) int {
	var room [8]int
	room[n&7] = leaf(n)
	if n == 0 {
		return room[0]
	}
	return deep(n-1) + room[n&7]
}

type shape interface{ area(n int) int }
type square struct{ side int }
type circle struct{ radius int }

//go:noinline
func (s square) area(n int) int { return leaf(s.side * n) }

//go:noinline
func (c *circle) area(n int) int { return leaf(c.radius*n) * 3 }

//go:noinline
func recovers(n int) (result int) {
	defer func() {
		if r := recover(); r != nil {
			result = leaf(n) + len(fmt.Sprint(r))
		}
	}()
	if n%3 == 0 {
		panic("third " + strconv.Itoa(n))
	}
	return deep(n & 15)
}

//go:noinline
func closures(n int) int {
	sum := 0
	add := func(by int) { sum += leaf(by) }
	for i := 0; i < n&7; i++ {
		add(i)
	}
	return sum
}

func main() {
	rounds := 1
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
	for n := 0; n < rounds; n++ {
		counts := map[string]int{}
		for _, word := range strings.Fields("a goroutine begins on two kilobytes and its stack is copied as it grows") {
			counts[strings.ToUpper(word)] += len(word)
		}
		words := make([]string, 0, len(counts))
		for word := range counts {
			words = append(words, word)
		}
		sort.Strings(words)
		shapes := []shape{square{n}, &circle{n}}
		for _, s := range shapes {
			sink ^= s.area(n)
		}
		sink ^= deep(20+n&31) + recovers(n) + closures(n)
		sink ^= len(fmt.Sprintf("%d %v %q %5.2f", n, words[:3], words[0], float64(n)/3))
		if n&255 == 200 {
			sink ^= deep(900)
		}
	}
	fmt.Println(len(strconv.Itoa(sink)) > 0)
}
