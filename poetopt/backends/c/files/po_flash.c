/* Written by poetopt: constants of ${model} in flash. */

#include "po.h"

${data}