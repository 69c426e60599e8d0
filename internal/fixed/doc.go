// Package fixed is arithmetic on amounts: tokens, or tokens per second, in millionths; and on
// numbers of 128 bits, for products and sums of 64-bit numbers. Sums are exact, products and
// quotients have 128 bits in between and round as their comment says, so a sum of parts is never
// above the whole. It knows nothing of limits.
package fixed
