// Package redis keeps the state of limits in Redis or Valkey, where many processes
// share it.
package redis

import _ "github.com/redis/rueidis"
