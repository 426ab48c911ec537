/* Written by poetopt: loads the initial values of parameters and constants of ${model}, which po_weights.bin has at the
   start of the storage. */

#include <string.h>

#include "po.h"

int po_load(void)
{
    int code = 0;
${copies}${reads}    return code;
}
