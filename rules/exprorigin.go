package rules

import (
	"net/netip"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/stint-io/stint/internal/address"
)

// originAttributes are the variables of the client's origin, as Cloud Armor calls them, and the
// attributes that they are.
var originAttributes = map[string]string{
	"origin.ip": ipAttribute, "origin.user_ip": userIPAttribute, "origin.region_code": "region", "origin.asn": "asn",
}

// inIPRange is inIpRange(address, network): false for a text that is no address.
func inIPRange() cel.EnvOption {
	return cel.Function("inIpRange", cel.Overload("in_ip_range", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType,
		cel.BinaryBinding(func(text, network ref.Val) ref.Val {
			net, err := netip.ParsePrefix(string(network.(types.String)))
			if err != nil {
				return types.NewErr("inIpRange: %q is not a network of addresses", string(network.(types.String)))
			}
			addr, bits, ok := parseAddress(string(text.(types.String)))
			net = address.Prefix(net)
			return types.Bool(ok && net.Contains(addr) && bits >= net.Bits())
		})))
}

// lowered is text.lower() or text.upper().
func lowered(name string, change func(string) string) cel.EnvOption {
	return cel.Function(name, cel.MemberOverload("string_"+name, []*cel.Type{cel.StringType}, cel.StringType,
		cel.UnaryBinding(func(text ref.Val) ref.Val { return types.String(change(string(text.(types.String)))) })))
}
