// Package webhook sends messages to one URL: signed as Standard Webhooks says (https://www.standardwebhooks.com),
// each until it is taken, those of one key in their order. A receiver that is away costs a request now and then.
//
// Messages wait in memory, so many and so long; those that are left when the process ends are lost. A message is sent
// again when it is not known whether the receiver took it, with the same ID. The package does not know what messages
// say.
package webhook
