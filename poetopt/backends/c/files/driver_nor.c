/* Example of po_read and po_write for NOR flash on SPI (W25Q and similar chips), from its first byte on.

   po_write erases a sector of 4,096 bytes when it writes the sector's first block, and programs the following blocks.
   This is the order in which po_save() writes a copy, so that a save erases each sector of one copy once. po_write fails
   for plans whose steps write to the storage: single blocks would each erase a sector, thousands of times a day (an SD
   card has wear levelling). The device file must have storage_erase_bytes = 4096.

   Two functions depend on the board: nor_select drives the chip's select line, and nor_byte sends a byte and returns the
   byte that is received meanwhile. The driver uses no RAM but the stack. */

#include "po.h"

#define SECTOR_BYTES 4096u
#define PAGE_BYTES 256u

enum { PROGRAM = 0x02, READ = 0x03, STATUS = 0x05, ENABLE = 0x06, ERASE = 0x20, BUSY = 0x01 };
enum { TRIES = 10000000 };

void nor_select(int chosen);
uint8_t nor_byte(uint8_t byte);

/* Begins a command at an address; the chip stays selected. */
static void begin(uint8_t command, uint32_t address)
{
    nor_select(1);
    (void)nor_byte(command);
    for (int shift = 16; shift >= 0; shift -= 8) {
        (void)nor_byte((uint8_t)(address >> shift));
    }
}

/* Ends a command that changes the flash, and waits for it; returns 0 on success. */
static int done(void)
{
    uint8_t status = BUSY;
    nor_select(0);
    nor_select(1);
    (void)nor_byte(STATUS);
    for (int k = 0; k < TRIES && (status & BUSY) != 0u; k++) {
        status = nor_byte(0xFF);
    }
    nor_select(0);
    return (status & BUSY) != 0u;
}

static void enable(void)
{
    nor_select(1);
    (void)nor_byte(ENABLE);
    nor_select(0);
}

int po_read(uint32_t block, void *address, uint32_t bytes)
{
    unsigned char *to = address;
    begin(READ, block * PO_BLOCK_BYTES);
    for (uint32_t k = 0; k < bytes; k++) {
        to[k] = nor_byte(0xFF);
    }
    nor_select(0);
    return 0;
}

int po_write(uint32_t block, const void *address, uint32_t bytes)
{
    const unsigned char *from = address;
    const uint32_t first = block * PO_BLOCK_BYTES;
    int failed = block + 1u <= PO_COPIES || PO_COPIES * PO_BLOCK_BYTES % SECTOR_BYTES != 0u;
    for (uint32_t at = 0; !failed && at < bytes; at += PAGE_BYTES) {
        if ((first + at) % SECTOR_BYTES == 0u) {
            enable();
            begin(ERASE, first + at);
            failed = done();
        }
        if (!failed) {
            enable();
            begin(PROGRAM, first + at);
            for (uint32_t k = at; k < bytes && k < at + PAGE_BYTES; k++) {
                (void)nor_byte(from[k]);
            }
            failed = done();
        }
    }
    return failed;
}
