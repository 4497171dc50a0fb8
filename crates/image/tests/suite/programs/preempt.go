// Answers for addresses of its own code whether Go's runtime would stop a goroutine there by a signal, as the runtime
// itself decides it: standard input has addresses, eight bytes each, and standard output a byte for each, 1 for yes.
package main

import (
	"bufio"
	"encoding/binary"
	"os"
	"unsafe"
)

//go:linkname isAsyncSafePoint runtime.isAsyncSafePoint
func isAsyncSafePoint(gp unsafe.Pointer, pc, sp, lr uintptr) (bool, uintptr)

//go:linkname allgs runtime.allgs
var allgs []unsafe.Pointer

func main() {
	// The first goroutine is this one. Its record begins with the bounds of its stack, where all of it is free.
	self := allgs[0]
	top := *(*uintptr)(unsafe.Add(self, 8))
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var word [8]byte
	for {
		if n, err := in.Read(word[:1]); n == 0 || err != nil {
			return
		}
		for i := 1; i < 8; i++ {
			word[i], _ = in.ReadByte()
		}
		pc := uintptr(binary.LittleEndian.Uint64(word[:]))
		ok, goesOn := isAsyncSafePoint(self, pc, top, 0)
		if ok && goesOn != pc {
			out.WriteByte(2)
		} else if ok {
			out.WriteByte(1)
		} else {
			out.WriteByte(0)
		}
	}
}
