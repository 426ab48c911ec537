/* Example for a board with an SD card on SPI: batches, storage and results are on the card, in blocks of 512 bytes.

   from block 0             the storage of po_read and po_write: po_storage.bin, with room for PO_BLOCKS blocks
   block PO_BLOCKS          input: the number of steps (uint32_t, little-endian)
   from PO_BLOCKS + 1       input: tensors in the order of po_inputs, one step after another (one micro-batch after
                            another if a step has several); each tensor begins with a block
   after the inputs         output: po_results and then po_parameters, after the last step; each begins with a block

   It restores the newest saved training state, and saves the state after each step.

   The first four functions depend on the board. These are for an LM3S6965 with the card on SSI0 and its select line on
   GPIO D0. The program uses no RAM but the stack; each transfer therefore queries the card's addressing again. Compiled
   with PO_SEMIHOSTING, it reports its end to a debugger or emulator; otherwise it waits for ever. */

#include <stdint.h>

#include "po.h"

#if PO_BLOCK_BYTES != 512
#error "SD cards move blocks of 512 bytes: plan for a device with such a storage"
#endif

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SSI0 0x40008000u
#define GPIO_D 0x40007000u

enum { SSI_CR0 = 0x00, SSI_CR1 = 0x04, SSI_DR = 0x08, SSI_SR = 0x0C, SSI_CPSR = 0x10, RECEIVED = 1 << 2 };
enum { GPIO_D0 = 1 << 2, GPIO_DIR = 0x400, GPIO_DEN = 0x51C };

static void spi_begin(void)
{
    REGISTER(0x400FE104u) |= 1u << 4; /* clocks of SSI0 and of port D */
    REGISTER(0x400FE108u) |= 1u << 3;
    REGISTER(GPIO_D + GPIO_DIR) |= 1u;
    REGISTER(GPIO_D + GPIO_DEN) |= 1u;
    REGISTER(SSI0 + SSI_CR1) = 0u;
    REGISTER(SSI0 + SSI_CPSR) = 2u;
    REGISTER(SSI0 + SSI_CR0) = 7u; /* eight bits, mode 0 */
    REGISTER(SSI0 + SSI_CR1) = 2u;
}

static void spi_select(int chosen) { REGISTER(GPIO_D + GPIO_D0) = chosen ? 0u : 1u; }

/* Sends a byte, and returns the byte that is received meanwhile. */
static uint8_t spi_byte(uint8_t byte)
{
    REGISTER(SSI0 + SSI_DR) = byte;
    while ((REGISTER(SSI0 + SSI_SR) & RECEIVED) == 0u) {
    }
    return (uint8_t)REGISTER(SSI0 + SSI_DR);
}

static void done(void)
{
#if defined(PO_SEMIHOSTING)
    register int32_t r0 __asm__("r0") = 0x18;
    register uintptr_t r1 __asm__("r1") = 0x20026;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
#endif
    for (;;) {
    }
}

/* The card (SD Physical Layer Specification, chapter 7). */
enum { RESET = 0, CHECK = 8, LENGTH = 16, READ_BLOCK = 17, WRITE_BLOCK = 24, START = 41, APPLICATION = 55, OCR = 58 };
enum { IDLE = 0x01, TOKEN = 0xFE, ACCEPTED = 0x05, TRIES = 100000 };

/* Sends a command; returns the card's answer, or 0xFF if there is none. */
static uint8_t command(uint8_t number, uint32_t argument)
{
    uint8_t answer = 0xFF;
    (void)spi_byte(0xFF);
    (void)spi_byte((uint8_t)(0x40u | number));
    for (int shift = 24; shift >= 0; shift -= 8) {
        (void)spi_byte((uint8_t)(argument >> shift));
    }
    (void)spi_byte(number == RESET ? 0x95 : 0x87); /* the card checks this until it is in SPI mode */
    for (int k = 0; k < 8 && (answer & 0x80u) != 0u; k++) {
        answer = spi_byte(0xFF);
    }
    return answer;
}

static uint32_t answer32(void)
{
    uint32_t value = 0;
    for (int k = 0; k < 4; k++) {
        value = value << 8 | spi_byte(0xFF);
    }
    return value;
}

/* Initialises the card; returns 0 when it is ready. */
static int card_begin(void)
{
    uint8_t answer = IDLE;
    spi_begin();
    spi_select(0);
    for (int k = 0; k < 10; k++) {
        (void)spi_byte(0xFF);
    }
    spi_select(1);
    if (command(RESET, 0u) != IDLE) {
        return 1;
    }
    if (command(CHECK, 0x1AAu) == IDLE && (answer32() & 0xFFFu) != 0x1AAu) {
        return 1;
    }
    for (int k = 0; k < TRIES && answer != 0u; k++) {
        (void)command(APPLICATION, 0u);
        answer = command(START, 1u << 30);
    }
    if (answer == 0u && command(LENGTH, PO_BLOCK_BYTES) != 0u) {
        answer = 0xFF;
    }
    spi_select(0);
    return answer != 0u;
}

/* Returns the card's address of a block: large cards count blocks, others bytes. */
static uint32_t address_of(uint32_t block)
{
    uint32_t large;
    if ((command(OCR, 0u) & 0xFEu) != 0u) { /* any error bit; some cards wrongly report that they are idle */
        return 0xFFFFFFFFu;
    }
    large = answer32() & 1u << 30;
    return large != 0u ? block : block * PO_BLOCK_BYTES;
}

static int wait_for(uint8_t byte)
{
    for (int k = 0; k < TRIES; k++) {
        if (spi_byte(0xFF) == byte) {
            return 0;
        }
    }
    return 1;
}

/* Reads the first `count` bytes of a block, and discards the rest. */
static int block_in(uint32_t block, unsigned char *to, uint32_t count)
{
    int failed = command(READ_BLOCK, address_of(block)) != 0u || wait_for(TOKEN) != 0;
    for (uint32_t k = 0; !failed && k < PO_BLOCK_BYTES + 2u; k++) { /* with two bytes of checksum */
        const uint8_t byte = spi_byte(0xFF);
        if (k < count) {
            to[k] = byte;
        }
    }
    return failed;
}

static int block_out(uint32_t block, const unsigned char *from, uint32_t count)
{
    if (command(WRITE_BLOCK, address_of(block)) != 0u) {
        return 1;
    }
    (void)spi_byte(0xFF);
    (void)spi_byte(TOKEN);
    for (uint32_t k = 0; k < PO_BLOCK_BYTES + 2u; k++) {
        (void)spi_byte(k < count ? from[k] : 0u);
    }
    return (spi_byte(0xFF) & 0x1Fu) != ACCEPTED || wait_for(0xFF) != 0; /* the card is busy while it writes */
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    unsigned char *to = address;
    int failed = 0;
    spi_select(1);
    for (uint32_t at = 0; !failed && at < bytes; at += PO_BLOCK_BYTES, block++) {
        failed = block_in(block, to + at, smaller(bytes - at, PO_BLOCK_BYTES));
    }
    spi_select(0);
    return failed;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    const unsigned char *from = address;
    int failed = 0;
    spi_select(1);
    for (uint32_t at = 0; !failed && at < bytes; at += PO_BLOCK_BYTES, block++) {
        failed = block_out(block, from + at, smaller(bytes - at, PO_BLOCK_BYTES));
    }
    spi_select(0);
    return failed;
}

static uint32_t blocks(uint32_t bytes) { return (bytes + PO_BLOCK_BYTES - 1u) / PO_BLOCK_BYTES; }

/* Copies `bytes` from block `from` on to block `to` on. */
static int copy(uint32_t from, uint32_t to, uint32_t bytes)
{
    unsigned char piece[PO_BLOCK_BYTES];
    int failed = 0;
    for (uint32_t at = 0; !failed && at < bytes; at += PO_BLOCK_BYTES, from++, to++) {
        const uint32_t count = smaller(bytes - at, PO_BLOCK_BYTES);
        failed = po_read(from, piece, count) != 0 || po_write(to, piece, count) != 0;
    }
    return failed;
}

/* Reads tensors from block `block` on into RAM or onto the storage; returns the block after them, or 0 on failure. */
static uint32_t next(uint32_t block, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        const po_tensor *t = &tensors[k];
        if (t->address != 0 ? po_read(block, t->address, t->bytes) : copy(block, t->block, t->bytes)) {
            return 0u;
        }
        block += blocks(tensors[k].bytes);
    }
    return block;
}

/* Writes tensors from block `block` on, with gaps for those that are on the storage; returns the block after them. */
static uint32_t save(uint32_t block, const po_tensor *tensors, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        if (tensors[k].address != 0 && po_write(block, tensors[k].address, tensors[k].bytes) != 0) {
            return 0u;
        }
        block += blocks(tensors[k].bytes);
    }
    return block;
}

/* Restores the last saved training state, or loads the initial values if there is none. */
static int begin(void)
{
    int code = po_load();
    if (code != PO_DONE) {
        return code;
    }
    code = po_restore();
    return code == PO_DAMAGED ? PO_DONE : code;
}

/* Runs a step with the inputs from block `block` on; returns the block after them, or 0 on failure. */
static uint32_t step(uint32_t block)
{
#if PO_PARTS > 1u
    for (uint32_t part = 0; part < PO_PARTS && block != 0u; part++) {
        block = next(block, po_inputs, PO_INPUTS);
        block = block == 0u || po_part(part) != 0 ? 0u : block;
    }
#else
    block = next(block, po_inputs, PO_INPUTS);
#endif
    return block == 0u || po_step() != 0 ? 0u : block;
}

int main(void)
{
    uint32_t steps = 0, block = PO_BLOCKS + 1u;
    int failed = card_begin() != 0 || po_read(PO_BLOCKS, &steps, sizeof steps) != 0 || begin() != 0;
    for (uint32_t k = 0; !failed && k < steps; k++) {
        if (k != 0) {
            po_carry();
        }
        block = step(block);
        failed = block == 0u || po_save() != 0;
    }
    if (!failed) {
        block = save(block, po_results, PO_RESULTS);
        (void)save(block, po_parameters, PO_PARAMETERS);
    }
    done();
    return 0;
}
