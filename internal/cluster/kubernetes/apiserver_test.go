package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// apiServer answers what this package asks of an API server, with the rules that a real one has for
// resourceVersions: one counter for all objects, conflicts, preconditions, and patches that change
// nothing and so keep the version. scripts/kubernetes runs the same suite against a real one.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	token    string // that calls must bear; "" = none
	version  uint64
	objects  map[string]map[string]any // by namespace/name
	watchers map[chan []byte]string    // label selector by channel
	frozen   chan struct{}             // nil = it answers
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}, watchers: map[chan []byte]string{}}
	mux := http.NewServeMux()
	const leases = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
	mux.HandleFunc("GET "+leases, s.list)
	mux.HandleFunc("POST "+leases, s.create)
	mux.HandleFunc("GET "+leases+"/{name}", s.get)
	mux.HandleFunc("PATCH "+leases+"/{name}", s.patch)
	mux.HandleFunc("DELETE "+leases+"/{name}", s.remove)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		frozen, token := s.frozen, s.token
		s.mu.Unlock()
		if frozen != nil {
			select {
			case <-frozen:
			case <-r.Context().Done():
				return
			}
		}
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *apiServer) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = make(chan struct{})
}

func (s *apiServer) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.frozen)
	s.frozen = nil
}

func refuse(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": fmt.Sprintf(format, args...),
	})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func meta(object map[string]any) map[string]any {
	m, ok := object["metadata"].(map[string]any)
	if !ok {
		m = map[string]any{}
		object["metadata"] = m
	}
	return m
}

var objectNames = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// decode reads a Lease and checks what a real server checks of its metadata.
func decode(w http.ResponseWriter, r *http.Request) (map[string]any, bool) {
	var object map[string]any
	text, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(text, &object); err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return nil, false
	}
	name, _ := meta(object)["name"].(string)
	if len(name) > 253 || !objectNames.MatchString(name) || object["kind"] != "Lease" || object["apiVersion"] != "coordination.k8s.io/v1" {
		refuse(w, http.StatusUnprocessableEntity, "invalid: %.300s", text)
		return nil, false
	}
	return object, true
}

func (s *apiServer) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object, ok := s.objects[r.PathValue("namespace")+"/"+r.PathValue("name")]
	if !ok {
		refuse(w, http.StatusNotFound, "leases %q not found", r.PathValue("name"))
		return
	}
	answer(w, http.StatusOK, object)
}

func (s *apiServer) create(w http.ResponseWriter, r *http.Request) {
	object, ok := decode(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name, _ := meta(object)["name"].(string)
	key := r.PathValue("namespace") + "/" + name
	switch {
	case s.objects[key] != nil:
		refuse(w, http.StatusConflict, "leases %q already exists", name)
	case meta(object)["resourceVersion"] != nil:
		refuse(w, http.StatusBadRequest, "resourceVersion should not be set on objects to be created")
	default:
		s.storeLocked(key, object, "ADDED")
		answer(w, http.StatusCreated, object)
	}
}

// patch is a merge patch. With a resourceVersion it is refused for any other version.
func (s *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Content-Type"); got != "application/merge-patch+json" {
		refuse(w, http.StatusUnsupportedMediaType, "a patch of type %q", got)
		return
	}
	change, ok := decode(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.PathValue("namespace") + "/" + r.PathValue("name")
	present := s.objects[key]
	switch version := meta(change)["resourceVersion"]; {
	case present == nil:
		refuse(w, http.StatusNotFound, "leases %q not found", r.PathValue("name"))
	case version != nil && version != meta(present)["resourceVersion"]:
		refuse(w, http.StatusConflict, "the object has been modified; please apply your changes to the latest version and try again")
	default:
		merged := merge(merge(nil, present), change)
		if reflect.DeepEqual(merged, merge(nil, present)) {
			answer(w, http.StatusOK, present)
			return
		}
		s.storeLocked(key, merged, "MODIFIED")
		answer(w, http.StatusOK, merged)
	}
}

// merge returns an object with a merge patch applied; it shares nothing with either.
func merge(object, change map[string]any) map[string]any {
	merged := maps.Clone(object)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range change {
		if inner, ok := value.(map[string]any); ok {
			before, _ := merged[name].(map[string]any)
			value = merge(before, inner)
		}
		merged[name] = value
	}
	return merged
}

func (s *apiServer) remove(w http.ResponseWriter, r *http.Request) {
	var options struct {
		Preconditions struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"preconditions"`
	}
	if text, _ := io.ReadAll(r.Body); len(text) > 0 {
		if err := json.Unmarshal(text, &options); err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := r.PathValue("namespace") + "/" + r.PathValue("name")
	present := s.objects[key]
	switch version := options.Preconditions.ResourceVersion; {
	case present == nil:
		refuse(w, http.StatusNotFound, "leases %q not found", r.PathValue("name"))
	case version != "" && version != meta(present)["resourceVersion"]:
		refuse(w, http.StatusConflict, "precondition failed: resourceVersion")
	default:
		delete(s.objects, key)
		s.version++
		s.notifyLocked("DELETED", present)
		answer(w, http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	}
}

func (s *apiServer) storeLocked(key string, object map[string]any, event string) {
	s.version++
	meta(object)["resourceVersion"] = strconv.FormatUint(s.version, 10)
	s.objects[key] = object
	s.notifyLocked(event, object)
}

func (s *apiServer) notifyLocked(event string, object map[string]any) {
	line := eventLine(event, object)
	for lines, selector := range s.watchers {
		if selected(object, selector) {
			lines <- line
		}
	}
}

func eventLine(event string, object any) []byte {
	line, _ := json.Marshal(map[string]any{"type": event, "object": object})
	return append(line, '\n')
}

// selected reports whether an object has the label of a selector "name=value".
func selected(object map[string]any, selector string) bool {
	name, value, _ := strings.Cut(selector, "=")
	labels, _ := meta(object)["labels"].(map[string]any)
	return labels[name] == value
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	selector := r.URL.Query().Get("labelSelector")
	s.mu.Lock()
	var items []any
	for key, object := range s.objects {
		if strings.HasPrefix(key, r.PathValue("namespace")+"/") && selected(object, selector) {
			items = append(items, object)
		}
	}
	if r.URL.Query().Get("watch") == "" {
		defer s.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"kind": "LeaseList", "items": items})
		return
	}
	lines := make(chan []byte, 10_000)
	for _, item := range items {
		lines <- eventLine("ADDED", item)
	}
	s.watchers[lines] = selector
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, lines)
		s.mu.Unlock()
	}()
	w.WriteHeader(http.StatusOK)
	for {
		select {
		case line := <-lines:
			_, _ = w.Write(line)
		case <-r.Context().Done():
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
}
