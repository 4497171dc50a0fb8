/* What `counted` and its probed functions share.
 *
 * Every probed function takes up to three integers and returns one that the caller can foretell,
 * so that a probe which damages a register, the flags, the red zone or the return address is seen
 * by the program itself.
 */
#ifndef COUNTED_H
#define COUNTED_H

#include <stdint.h>

typedef uint64_t probed_fn(uint64_t a, uint64_t b, uint64_t c);

/* In counted_x86_64.S, one shape each. */
probed_fn work_short, work_tiny, work_nop5, work_push, work_ret, work_ret_next, work_loop_head,
    work_punned, work_punned_small, work_pushf,
    work_loop_self, work_call_first, work_redzone, work_flags, work_rip, work_jmp_first,
    work_jcc_first, work_endbr, work_rep, work_vector, work_stack, work_recursive, work_jump_table,
    work_big, work_page_end;

/* Unprobed twins, to know what the flags are without a probe. */
probed_fn plain_flags;

/* Calls a function that only returns; 0 if every register came back as it was. */
uint64_t registers_survive(probed_fn *tiny);

/* Labels inside the functions, for probes at offsets. */
extern const char work_redzone_mid[], work_flags_mid[], work_vector_mid[], work_big_mid[],
    work_page_end_mid[], work_pushf_mid[], work_call_first_return[];

#endif
