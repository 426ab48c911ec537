/* Written by poetopt: constants of ${model}, which stay in flash. */

#include "po.h"

${data}