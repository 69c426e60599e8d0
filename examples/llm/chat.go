package main

// The messages are those of OpenAI's chat completions, as far as the example goes.

// chatRequest is POST /v1/chat/completions.
type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages"`
	MaxTokens     int64          `json:"max_tokens,omitempty"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
	Seed          uint64         `json:"seed,omitempty"`
	User          string         `json:"user,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// streamOptions ask for usage: OpenAI sends it in a last chunk of its own, vLLM also in every chunk.
type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats,omitempty"`
}

// chunk is the data of one event of a stream.
type chunk struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Delta        message `json:"delta"`
	FinishReason *string `json:"finish_reason"`
}

type usage struct {
	PromptTokens     int64         `json:"prompt_tokens"`
	CompletionTokens int64         `json:"completion_tokens"`
	TotalTokens      int64         `json:"total_tokens"`
	Details          promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int64 `json:"cached_tokens"`
}

// chatError is OpenAI's shape of an error. TryModel is the example's own.
type chatError struct {
	Error struct {
		Message  string  `json:"message"`
		Type     string  `json:"type"`
		Param    *string `json:"param"`
		Code     string  `json:"code"`
		TryModel string  `json:"try_model,omitempty"`
	} `json:"error"`
}

func newChatError(kind, code, text string) *chatError {
	e := new(chatError)
	e.Error.Message, e.Error.Type, e.Error.Code = text, kind, code
	return e
}

// promptTokens counts as the tokenizer of the models does: a token for four bytes, and four for each message. A
// gateway that does not have the tokenizer takes the number of bytes, which is never less.
func promptTokens(all []message) int64 {
	var n int64
	for _, m := range all {
		n += 4 + (int64(len(m.Content))+3)/4
	}
	return n
}

// price is what a token costs, in thousandths of a micro-dollar: 2500 is $2.50 for a million tokens.
type price struct{ Input, Cached, Output int64 }

// models are those that are sold.
var models = map[string]price{
	"large": {Input: 2500, Cached: 1250, Output: 10000},
	"small": {Input: 1250, Cached: 625, Output: 2500},
}

// cost is what tokens cost in micro-dollars, rounded up. Of the prompt's tokens cached ones are cheaper.
func (p price) cost(prompt, cached, completion int64) int64 {
	return ((prompt-cached)*p.Input + cached*p.Cached + completion*p.Output + 999) / 1000
}
