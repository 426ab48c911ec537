/* Start-up of a bare Cortex-M: the vector table, and the code that runs before main.

   The linker script defines the top of the stack. Start-up clears and copies no memory: po_load writes the resident
   region, and the arena is empty before a step. */

#include <stdint.h>

extern uint32_t po_stack_top[];
int main(void);
void po_reset(void);
static void po_fault(void);

#define CPACR (*(volatile uint32_t *)0xE000ED88u)

void po_reset(void)
{
#if defined(__ARM_FP)
    CPACR |= 0xFu << 20; /* the floating-point unit is off after a reset */
    __asm__ volatile("dsb\n\tisb");
#endif
    (void)main();
    po_fault();
}

static void po_fault(void)
{
    for (;;) {
    }
}

typedef void (*po_vector)(void);

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    po_vector handler[15];
} po_vectors = {po_stack_top,
                {po_reset, po_fault, po_fault, po_fault, po_fault, po_fault, 0, 0, 0, 0, po_fault, po_fault, 0,
                 po_fault, po_fault}};
