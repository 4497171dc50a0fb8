// A Go process whose functions are called a known number of times, by eight goroutines in mid-run.
//
// Goroutines call IdleWork all the time; the garbage collector runs and stacks grow beside them.
// The commands and answers are those of counted.c:
//
//	run N FUNCTION -> calls FUNCTION=N idle=SO_FAR
//	totals, quit   -> totals ...; quit and the end of input end it with 7, a wrong result with 99
//
// Work is a leaf; WorkFrame has a frame but no stack check. A function with a stack check begins
// again after its stack has grown, so that its entry runs more often than it is called: WorkGrow.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

const (
	goroutines = 8
	corrupt    = 99
	quit       = 7
)

//go:noinline
func IdleWork(x uint64) uint64 { return x*2654435761 + 1 }

//go:noinline
func Work(x int) int { return x*3 + 1 }

//go:noinline
//go:nosplit
func WorkFrame(x int) int {
	var room [4]int
	fill(&room, x)
	return room[x&3]
}

//go:noinline
//go:nosplit
func fill(room *[4]int, x int) {
	for i := range room {
		room[i] = x + i
	}
}

// A goroutine may be parked at its second instruction, and the first has one byte.
//
//go:noinline
func WorkLeaf(x int) int {
	var room [4]int
	for i := range room {
		room[i] = x + i
	}
	return room[x&3]
}

//go:noinline
func WorkGrow(depth int) int {
	var room [64]int
	room[depth&63] = depth
	if depth == 0 {
		return 0
	}
	return WorkGrow(depth-1) + room[depth&63] - depth + 1
}

//go:noinline
func WorkPanics(x int) int {
	if x%2 == 1 {
		panic(x)
	}
	return x
}

func recovered(x int) (got int) {
	defer func() {
		if r := recover(); r != nil {
			got = r.(int)
		}
	}()
	return WorkPanics(x)
}

type pair struct{ first, second int }

// Its first instruction faults for nil, of which the runtime makes a panic.
//
//go:noinline
func (p *pair) Second() int { return p.second }

func second(x int) (got int) {
	defer func() {
		if recover() != nil {
			got = x
		}
	}()
	if x%2 == 1 {
		return (*pair)(nil).Second()
	}
	return (&pair{second: x}).Second()
}

var turns = map[string]func(i int) bool{
	"main.Second":     func(i int) bool { return second(i) == i },
	"main.Work":       func(i int) bool { return Work(i) == i*3+1 },
	"main.WorkFrame":  func(i int) bool { return WorkFrame(i) == i+i&3 },
	"main.WorkLeaf":   func(i int) bool { return WorkLeaf(i) == i+i&3 },
	"main.WorkPanics": func(i int) bool { return recovered(i) == i },
	"main.WorkGrow": func(i int) bool {
		deep := make(chan int)
		go func() { deep <- WorkGrow(i % 200) }()
		return <-deep == i%200
	},
}

type order struct {
	turn  func(i int) bool
	calls int
}

var idle atomic.Uint64

func busy(orders <-chan order, done chan<- bool) {
	x := uint64(1)
	for {
		select {
		case o := <-orders:
			for i := 0; i < o.calls; i++ {
				if !o.turn(i) {
					fmt.Fprintln(os.Stderr, "counted: wrong result")
					os.Exit(corrupt)
				}
			}
			done <- true
		default:
			for i := 0; i < 1000; i++ {
				x = IdleWork(x)
			}
			idle.Add(1000)
		}
	}
}

var litter []byte

// Makes garbage, so that the collector stops the goroutines at any instruction.
func collect() {
	for {
		for i := 0; i < 100; i++ {
			litter = make([]byte, 64<<10)
		}
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
}

func main() {
	runtime.GOMAXPROCS(4)
	orders := make([]chan order, goroutines)
	done := make(chan bool)
	for g := range orders {
		orders[g] = make(chan order)
		go busy(orders[g], done)
	}
	go collect()
	fmt.Printf("ready pid=%d\n", os.Getpid())

	total := map[string]int{}
	totals := func() {
		fmt.Printf("totals idle=%d", idle.Load())
		for name, calls := range total {
			fmt.Printf(" %s=%d", name, calls)
		}
		fmt.Println()
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		word := strings.Fields(in.Text())
		if len(word) == 1 && word[0] == "quit" {
			break
		}
		if len(word) == 1 && word[0] == "totals" {
			totals()
			continue
		}
		var calls int
		name := "main.Work"
		fmt.Sscanf(in.Text(), "run %d %s", &calls, &name)
		if turns[name] == nil || calls%goroutines != 0 {
			fmt.Printf("refused %s\n", in.Text())
			continue
		}
		for _, to := range orders {
			to <- order{turns[name], calls / goroutines}
		}
		for range orders {
			<-done
		}
		total[name] += calls
		fmt.Printf("calls %s=%d idle=%d\n", name, calls, idle.Load())
	}
	totals()
	os.Exit(quit)
}
