package rules

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"

	"github.com/stint-io/stint/limit"
)

const (
	// maxExpression bounds an expression's text. Not larger: the checker's work
	// grows faster than the text. Not smaller: lists of some hundred values are
	// in use.
	maxExpression = 16 << 10

	// maxExpressionCost bounds one evaluation, in CEL's units of about one
	// simple operation. Not larger: every request may pay it. Not smaller: a
	// regular expression over a path of some kilobytes must fit.
	maxExpressionCost = 100_000
)

// expression is a compiled when.
type expression struct {
	program cel.Program
	// attributes are the names that it reads; "*" for any, "header:*" for any header.
	attributes []string
	// whole is set if it reads all header fields, and not only those that it names.
	whole bool
}

// allHeaders is the name under which expressions read every header field. As an attribute of a request it says that the
// request has more fields than it has attributes.
const allHeaders = headerPrefix + "*"

// shortVariables are attributes that expressions can name without attributes[...].
var shortVariables = [...]string{"ip", "user", "method", "path", "host"}

// expressions compiles CEL. The zero value is ready to use, by one goroutine at a time.
type expressions struct {
	env *cel.Env
}

// expressionFault is what is wrong with an expression, and where in its text.
type expressionFault struct {
	line, column int // from 1; 0 when unknown
	message      string
	hint         string
}

func (c *expressions) environment() (*cel.Env, error) {
	if c.env != nil {
		return c.env, nil
	}
	texts := cel.MapType(cel.StringType, cel.StringType)
	options := []cel.EnvOption{
		cel.Variable("attributes", texts),
		cel.Variable(domainAttribute, cel.StringType),
		cel.Variable("request.method", cel.StringType),
		cel.Variable("request.path", cel.StringType),
		cel.Variable("request.host", cel.StringType),
		cel.Variable("request.size", cel.IntType),
		cel.Variable("request.headers", texts),
		cel.Variable("origin.ip", cel.StringType),
		cel.Variable("origin.user_ip", cel.StringType),
		cel.Variable("origin.region_code", cel.StringType),
		cel.Variable("origin.asn", cel.IntType),
		inIPRange(), lowered("lower", strings.ToLower), lowered("upper", strings.ToUpper),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(maxDepth),
	}
	for _, name := range shortVariables {
		options = append(options, cel.Variable(name, cel.StringType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, err
	}
	c.env = env
	return env, nil
}

func (c *expressions) compile(src string) (*expression, []expressionFault) {
	one := func(message string) []expressionFault { return []expressionFault{{message: message}} }
	if len(src) > maxExpression {
		return nil, one("expression has more than " + strconv.Itoa(maxExpression) + " bytes")
	}
	env, err := c.environment()
	if err != nil {
		return nil, one(err.Error())
	}
	checked, issues := env.Compile(src)
	if issues.Err() != nil {
		var out []expressionFault
		for _, e := range issues.Errors() {
			message, _, _ := strings.Cut(e.Message, "\n")
			message, _, _ = strings.Cut(message, " expecting {") // a list of all tokens there are
			message = strings.ReplaceAll(message, " (in container '')", "")
			out = append(out, expressionFault{line: e.Location.Line(), column: e.Location.Column() + 1, message: message})
		}
		return nil, out
	}
	if checked.OutputType() != cel.BoolType {
		return nil, one("expression gives " + checked.OutputType().String() + ", want bool")
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxExpressionCost))
	if err != nil {
		return nil, one(err.Error())
	}
	names, wrong := readBy(checked)
	whole := contains(names, "*") || contains(names, allHeaders)
	return &expression{program: program, attributes: names, whole: whole}, wrong
}

// readBy lists the attributes that an expression reads. A header name that is not in lower case
// is a fault: there is no such attribute, and the expression would never hold.
func readBy(checked *cel.Ast) (names []string, wrong []expressionFault) {
	whole, named := 0, 0 // maps mentioned at all; mentioned to read one name
	headers := 0
	ident := func(e celast.Expr) string {
		if e != nil && e.Kind() == celast.IdentKind {
			return strings.TrimPrefix(e.AsIdent(), ".")
		}
		return ""
	}
	read := func(from celast.Expr, name string) {
		lower := ""
		switch ident(from) {
		case "attributes":
			names, named = append(names, canonicalName(name)), named+1
			lower = canonicalName(name)
		case "request.headers":
			lower = strings.ToLower(name)
			names, named = append(names, headerPrefix+name), named+1
			headers--
		}
		if lower != "" && lower != name {
			at := checked.NativeRep().SourceInfo().GetStartLocation(from.ID())
			wrong = append(wrong, expressionFault{
				line: at.Line(), column: at.Column() + 1,
				message: strconv.Quote(name) + " is no header field here: their names are in lower case",
				hint:    "write " + strconv.Quote(lower),
			})
		}
	}
	celast.PreOrderVisit(checked.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch e.Kind() {
		case celast.IdentKind:
			switch name := ident(e); name {
			case "attributes":
				whole++
			case "request.headers":
				whole++
				headers++
			case domainAttribute:
			default:
				if attribute := originAttributes[name]; attribute != "" {
					names = append(names, attribute)
				} else if short, ok := strings.CutPrefix(name, "request."); ok {
					names = append(names, short)
				} else if contains(shortVariables[:], name) {
					names = append(names, name)
				}
			}
		case celast.SelectKind:
			read(e.AsSelect().Operand(), e.AsSelect().FieldName())
		case celast.CallKind:
			args := e.AsCall().Args()
			if len(args) != 2 {
				return
			}
			from, key := args[0], args[1]
			if e.AsCall().FunctionName() == "inIpRange" {
				wrong = append(wrong, wrongNetwork(checked, key)...)
			}
			if e.AsCall().FunctionName() == "@in" {
				from, key = key, from
			} else if e.AsCall().FunctionName() != "_[_]" {
				return
			}
			if key.Kind() == celast.LiteralKind {
				if text, ok := key.AsLiteral().(types.String); ok {
					read(from, string(text))
				}
			}
		}
	}))
	switch {
	case whole > named && headers == whole-named:
		names = append(names, allHeaders)
	case whole > named:
		names = append(names, "*")
	}
	return names, wrong
}

// wrongNetwork is the fault of a network that is written in an expression and is none: each evaluation would fail.
func wrongNetwork(checked *cel.Ast, e celast.Expr) []expressionFault {
	if e.Kind() != celast.LiteralKind {
		return nil
	}
	text, _ := e.AsLiteral().(types.String)
	if _, err := netip.ParsePrefix(string(text)); err == nil {
		return nil
	}
	at := checked.NativeRep().SourceInfo().GetStartLocation(e.ID())
	return []expressionFault{{
		line: at.Line(), column: at.Column() + 1,
		message: strconv.Quote(string(text)) + " is not a network of addresses", hint: "write it as 10.0.0.0/8 or 2001:db8::/32",
	}}
}

// activation gives an expression the request's attributes. Maps are made when
// first asked for, once per request.
type activation struct {
	domain     string
	attrs      []limit.Attribute
	attributes map[string]string
	headers    map[string]string
	whole      bool // the expression reads all header fields
}

// Parent implements cel.Activation.
func (a *activation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation. A variable whose attribute is missing
// is unknown, which makes the evaluation fail unless it is not needed.
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case domainAttribute:
		return a.domain, true
	case "attributes":
		if a.cut() {
			return errHeaders, true
		}
		if a.attributes == nil {
			a.attributes = make(map[string]string, len(a.attrs))
			for i := len(a.attrs) - 1; i >= 0; i-- {
				a.attributes[canonicalName(a.attrs[i].Name)] = a.attrs[i].Value
			}
		}
		return a.attributes, true
	case "request.headers":
		if a.cut() {
			return errHeaders, true
		}
		if a.headers == nil {
			a.headers = make(map[string]string)
			for i := len(a.attrs) - 1; i >= 0; i-- {
				if header, ok := strings.CutPrefix(canonicalName(a.attrs[i].Name), headerPrefix); ok {
					a.headers[header] = a.attrs[i].Value
				}
			}
		}
		return a.headers, true
	}
	short := strings.TrimPrefix(name, "request.")
	if attribute := originAttributes[name]; attribute != "" {
		short = attribute
	}
	for i := range a.attrs {
		if a.attrs[i].Name != short {
			continue
		}
		if short == "size" || name == "origin.asn" {
			number, err := strconv.ParseInt(a.attrs[i].Value, 10, 64)
			if err != nil {
				return types.NewErr("%s is not a known number: %.20q", short, a.attrs[i].Value), true
			}
			return number, true
		}
		return a.attrs[i].Value, true
	}
	return nil, false
}

// errHeaders is the value of header fields that are not all known.
var errHeaders = types.NewErr("the request has more header fields than are read")

// cut reports whether the expression reads all header fields, and the request has more than its attributes say.
func (a *activation) cut() bool {
	return a.whole && slices.ContainsFunc(a.attrs, func(b limit.Attribute) bool { return b.Name == allHeaders })
}

// evaluate reports whether the expression holds.
func (s *subject) evaluate(e *expression) bool {
	if s.activation == nil {
		s.activation = s.set.activations.Get().(*activation)
		domain, _ := s.get(domainAttribute)
		*s.activation = activation{domain: domain, attrs: s.attrs}
	}
	s.activation.whole = e.whole
	value, _, err := e.program.Eval(s.activation)
	if err != nil {
		s.set.expressionErrors.Add(1)
		s.fault, s.why = failedEvaluation, err
		if text := err.Error(); strings.HasPrefix(text, "no such attribute") || strings.HasPrefix(text, "no such key") {
			s.fault = missingAttribute
		}
		return false
	}
	return value == types.True
}

func (s *subject) release() {
	if s.activation != nil {
		*s.activation = activation{}
		s.set.activations.Put(s.activation)
		s.activation = nil
	}
}
