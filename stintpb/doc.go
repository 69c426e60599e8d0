// Package stintpb is stint's own gRPC service, for programs in Go: decisions, and costs that are reserved before they
// are known. [NewLimitsClient] makes a client of a connection; it is safe for concurrent use. The code is generated from
// proto/stint/limits/v1, which says what each call does and which statuses it ends with; other languages generate
// theirs.
//
// It has no server, and no retries: every call but Take and Reserve may be made again, and changes nothing then.
package stintpb
