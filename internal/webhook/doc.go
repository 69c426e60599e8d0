// Package webhook sends messages to one URL: signed as Standard Webhooks says (https://www.standardwebhooks.com),
// each until it is taken, those of one key in their order. A receiver that is away costs a request now and then.
//
// It keeps nothing: messages wait in an [Outbox]. A message is sent again when it is not known whether the
// receiver took it, with the same ID. It does not know what messages say.
package webhook
