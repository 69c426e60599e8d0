package main

// meter counts what a request costs. It is not safe for concurrent use.
type meter struct {
	price     price
	prompt    int64 // tokens
	maxTokens int64
	seen      int64 // tokens of the answer that have come
	cached    int64 // tokens of the prompt; known with the first chunk
	final     bool  // the model has said what the whole request has used
	said      int64 // tokens of the answer that stint was told of
}

func newMeter(ask *chatRequest) *meter {
	return &meter{price: models[ask.Model], prompt: promptTokens(ask.Messages), maxTokens: ask.MaxTokens}
}

// with is the cost of a prompt of which nothing is cached, and an answer.
func (m *meter) with(completion int64) amounts {
	return amounts{m.prompt + completion, m.price.cost(m.prompt, 0, completion)}
}

// most is the most that the request can cost.
func (m *meter) most() amounts { return m.with(m.maxTokens) }

// see counts a chunk.
func (m *meter) see(c *chunk) {
	if c.Usage == nil {
		return
	}
	m.seen, m.cached = c.Usage.CompletionTokens, c.Usage.Details.CachedTokens
	m.final = len(c.Choices) == 0
}

// covered is how many tokens more than have come were said; negative = not all that have come were.
func (m *meter) covered() int64 { return m.said - m.seen }

// ahead is what is said next: what has come, and some more.
func (m *meter) ahead() int64 { return min(m.seen+ahead, m.maxTokens) }

// actual is what the request has cost: what the model says, or, of one that was cut, what was said last. The model
// may have made as much.
func (m *meter) actual() amounts {
	if !m.final {
		return m.with(max(m.said, m.seen))
	}
	return amounts{m.prompt + m.seen, m.price.cost(m.prompt, m.cached, m.seen)}
}
