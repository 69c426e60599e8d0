// Package verify holds what is deployed to the definitions of those who read it: the chart to
// Helm and to the types of Kubernetes, the Containerfile to BuildKit. It has a go.mod of its own, since
// they bring 80 modules that nothing else needs. It installs nothing in a cluster.
package verify
