// Package proxy is a reverse proxy that holds requests to limits before they reach a server: HTTP/1.1,
// HTTP/2 with and without TLS, WebSocket, streams and gRPC. It runs beside one server as its sidecar,
// or in front of several equal ones.
//
// It decides nothing itself: a limits file in this process, a stint service, or leases of a coordinator
// do. It does not buffer bodies, does not change them, caches nothing and retries nothing that a
// server may have seen. It routes by nothing: every request goes to the upstream with the least to do.
//
// [New] checks the options; [Proxy.Run] listens and returns when everything it started has ended. The
// package reads no flag and no environment variable, and installs no signal handler.
package proxy
