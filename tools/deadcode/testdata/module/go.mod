module github.com/stint-io/stint

go 1.26.0
