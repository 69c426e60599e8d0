// Package rules reads limit files and says which limits apply to a request.
//
// [Load] compiles files and folders into a [Set]; [Set.Match] finds, for a
// request's attributes, the limits that apply and the key of each one's bucket;
// [Watch] follows the files. A file is either in stint's own format (it has
// limits:) or in that of Envoy's rate limit service (it has domain: and
// descriptors:). Both kinds can be loaded together.
//
// The package does not count, decide or keep state; it does not read the environment and does
// not log.
//
// # Conditions
//
// A limit applies when all conditions of its match hold and its when is true. match compares
// attributes with patterns, in which a star stands for any run of characters, slashes included.
// A list holds when one of its patterns does. The pattern "*" holds if the attribute is present,
// whatever its value. The attribute ip is compared as an address: 10.0.0.0/8 and 2001:db8::/32
// are patterns too. The domain that a request came with can be matched as domain.
//
// when is a CEL expression of type bool. Its variables:
//
//	attributes       map(string, string): every attribute of the request
//	domain           string: the domain, "" when there is none
//	ip, user, method, path, host                string: the attribute of that name
//	request.method, request.path, request.host  string: the same
//	request.size     int: the attribute size
//	request.headers  map(string, string): attributes header:NAME, names in lower case
//
// What becomes of a request for which an expression fails, such as one that reads an attribute that the request does not
// have, or that costs too much, is [Limit.OnConditionError]; [Set.ExpressionErrors] counts these. An expression has a cost
// bound, so none can stall a request.
//
// # Keys
//
// A key is the values of the limit's key attributes, encoded so that two
// different lists of values never give the same bytes: every value carries its
// length, and one above 128 bytes is replaced by its SHA-256, marked as such.
// The attribute ip is compared as an address: 192.0.2.7 and ::ffff:192.0.2.7 are
// the same, and an IPv6 address counts by its /64 network, because that is what
// one customer gets (ipv6_prefix changes it).
//
// Names of headers (header:NAME) are compared without regard to case. Where an
// attribute occurs twice, the first one counts.
package rules
