/* USDT marks as <sys/sdt.h> writes them: MARK(name, semaphore, arguments), texts, in an asm statement. */
#include <stdint.h>

#define MARK(name, semaphore, args)                                                                \
    "990: nop\n"                                                                                   \
    ".pushsection .note.stapsdt, \"\", \"note\"\n"                                                 \
    ".balign 4\n"                                                                                  \
    ".4byte 992f - 991f, 994f - 993f, 3\n"                                                         \
    "991: .asciz \"stapsdt\"\n"                                                                    \
    "992: .balign 4\n"                                                                             \
    "993: .8byte 990b\n"                                                                           \
    ".8byte _.stapsdt.base\n"                                                                      \
    ".8byte " semaphore "\n"                                                                       \
    ".asciz \"demo\"\n"                                                                            \
    ".asciz \"" name "\"\n"                                                                        \
    ".asciz \"" args "\"\n"                                                                        \
    "994: .balign 4\n"                                                                             \
    ".popsection\n"

__asm__(".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n"
        ".weak _.stapsdt.base\n"
        ".hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n"
        ".size _.stapsdt.base, 1\n"
        ".popsection\n");

__attribute__((section(".probes"), visibility("hidden"))) volatile uint16_t demo_semaphore;
