/* UNITS units of debug information that hold nothing, before those of the program. */
        .section .debug_abbrev, "", @progbits
        .byte   1, 0x11, 0      /* a unit without children */
        .byte   0, 0            /* and without attributes */
        .byte   0
        .section .debug_info, "", @progbits
        .rept   UNITS
        .long   8               /* bytes that follow */
        .value  4               /* version */
        .long   0               /* abbreviations */
        .byte   8               /* bytes of an address */
        .byte   1               /* the unit's own entry */
        .endr
        .section .note.GNU-stack, "", @progbits
