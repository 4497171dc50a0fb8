// Methods, a switch and a recovered panic.
package main

import (
	"fmt"
	"os"
)

type Server struct{ hits int }

//go:noinline
func (s *Server) Handle(n int) int {
	s.hits += n
	return s.hits
}

//go:noinline
func recovers(n int) (out int) {
	defer func() {
		if recover() != nil {
			out = -1
		}
	}()
	return 10 / n
}

//go:noinline
func classify(n int) string {
	switch n {
	case 0:
		return "zero"
	case 1:
		return "one"
	case 2:
		return "two"
	case 3:
		return "three"
	case 4:
		return "four"
	case 5:
		return "five"
	case 6:
		return "six"
	case 7:
		return "seven"
	case 8:
		return "eight"
	}
	return "many"
}

func main() {
	s := &Server{}
	fmt.Println(s.Handle(len(os.Args)), recovers(len(os.Args)-1), classify(len(os.Args)))
}
