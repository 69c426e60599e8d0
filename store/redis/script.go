package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/rueidis"
)

// The script is the concatenation of these parts.
var (
	//go:embed lua/load.lua
	luaLoad string
	//go:embed lua/log.lua
	luaLog string
	//go:embed lua/permits.lua
	luaPermits string
	//go:embed lua/arithmetic.lua
	luaArithmetic string
	//go:embed lua/decide.lua
	luaDecide string

	script    = luaLoad + luaLog + luaPermits + luaArithmetic + luaDecide
	scriptSHA = sha(script)
)

// sha names a script as Redis does.
func sha(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

// call runs the script by its name.
func callScript(c rueidis.Client, keys, args []string) rueidis.Completed {
	return c.B().Evalsha().Sha1(scriptSHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// runScript runs the script once for each element of keys. A server that does not know it,
// because it is new or was restarted, is sent its text.
func runScript(ctx context.Context, c rueidis.Client, keys, args [][]string) []rueidis.RedisResult {
	var results []rueidis.RedisResult
	if len(keys) == 1 {
		results = []rueidis.RedisResult{c.Do(ctx, callScript(c, keys[0], args[0]))}
	} else {
		cmds := make([]rueidis.Completed, len(keys))
		for i := range keys {
			cmds[i] = callScript(c, keys[i], args[i])
		}
		results = c.DoMulti(ctx, cmds...)
	}
	for i := range results {
		if err, ok := rueidis.IsRedisErr(results[i].Error()); ok && err.IsNoScript() {
			results[i] = c.Do(ctx, c.B().Eval().Script(script).Numkeys(int64(len(keys[i]))).Key(keys[i]...).Arg(args[i]...).Build())
		}
	}
	return results
}
