package grpcserver

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Reason says why a call is refused for its form, whatever the limits say. A proxy that fails open lets its client
// pass then.
type Reason uint8

// The reasons.
const (
	MetadataTooLarge Reason = iota
	MessageTooLarge
	Malformed       // gRPC cannot read it
	BadRequest      // the service does not take it
	Unauthenticated // nothing proves who calls
	Denied          // the caller lacks the role
	Reasons         // how many there are
)

func (r Reason) String() string {
	return [...]string{"metadata_too_large", "message_too_large", "malformed", "bad_request", "unauthenticated", "denied"}[r]
}

// tooLarge is how gRPC says that a message is above the bound of all messages.
const tooLarge = "received message larger than max"

// reasonOf returns the reason of an error with which a call ends; false = it was not refused for its form.
func reasonOf(err error) (Reason, bool) {
	st := status.Convert(err)
	switch st.Code() {
	case codes.InvalidArgument:
		return BadRequest, true
	case codes.Unauthenticated:
		return Unauthenticated, true
	case codes.PermissionDenied:
		return Denied, true
	}
	// Messages of gRPC's own errors begin so; it exports no error values.
	switch byGRPC := strings.HasPrefix(st.Message(), "grpc: "); {
	case byGRPC && strings.Contains(st.Message(), tooLarge):
		return MessageTooLarge, true
	case byGRPC && st.Code() == codes.Internal:
		return Malformed, true
	}
	return 0, false
}

func (c *Config) note(ctx context.Context, method string, err error) {
	if err == nil || c.Refused == nil {
		return
	}
	if why, ok := reasonOf(err); ok {
		c.Refused(method, peerOf(ctx), why, err)
	}
}

func (c *Config) noteStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := next(srv, ss)
	c.note(ss.Context(), info.FullMethod, err)
	return err
}

// Noting returns a registrar that registers services at r, whose unary calls are noted when they are refused. An
// interceptor does not see those that gRPC cannot read.
func (c *Config) Noting(r grpc.ServiceRegistrar) grpc.ServiceRegistrar { return &noting{r, c} }

type noting struct {
	to grpc.ServiceRegistrar
	c  *Config
}

// RegisterService implements [grpc.ServiceRegistrar].
func (n *noting) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		method := "/" + desc.ServiceName + "/" + m.MethodName
		handle := m.Handler
		m.Handler = func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			resp, err := handle(srv, ctx, dec, interceptor)
			n.c.note(ctx, method, err)
			return resp, err
		}
		own.Methods[i] = m
	}
	n.to.RegisterService(&own, impl)
}

func peerOf(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}
