// Go and C in one program: C's code comes first.
package main

// static int three(int x) { return x * 3; }
import "C"

import "fmt"

//go:noinline
func fromGo(n int) int {
	return n + int(C.three(C.int(n)))
}

func main() {
	fmt.Println(fromGo(4))
}
