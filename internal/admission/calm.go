package admission

import "math"

// calmTime is what requests of a route take where none queues inside the server: mean and variance of
// the logarithm of their service times. The mean of logarithms of times that span three orders of
// magnitude is known from as few requests as that of times that vary by an exponential law; the mean of
// the times themselves is not.
type calmTime struct {
	mean, squares, count float64 // squares is the sum of squared differences to the mean
	gathered             sample
}

// sample is a number of values.
type sample struct{ count, sum, squares float64 }

func (s *sample) add(x float64) {
	s.count++
	s.sum += x
	s.squares += x * x
}

func (s *sample) mean() float64 { return s.sum / s.count }

// spread is the sum of squared differences to the mean.
func (s *sample) spread() float64 { return max(0, s.squares-s.sum*s.mean()) }

const (
	// priorVariance is the variance of the logarithm of a time that varies by an exponential law. It is
	// assumed of a route before its own is known, with the weight of priorCount requests.
	priorVariance = math.Pi * math.Pi / 6
	priorCount    = 4

	// enough requests replace what was known, if their mean is off.
	enough = 8

	// remembered is how many requests a calm time is about.
	remembered = 400
)

// variance is that of one request's logarithm.
func (c *calmTime) variance() float64 {
	return (priorVariance*priorCount + c.squares) / (priorCount + c.count)
}

// learn takes in what has been gathered. A mean that is more than three standard errors off is
// no accident: the server has changed, and what was known is dropped.
func (c *calmTime) learn() (replaced bool) {
	s := c.gathered
	if s.count == 0 || s.count < enough && c.count >= enough {
		return false
	}
	c.gathered = sample{}
	off := s.mean() - c.mean
	if c.count == 0 || s.count >= enough && off*off > 9*c.variance()*(1/c.count+1/s.count) {
		c.mean, c.squares, c.count = s.mean(), s.spread(), s.count
		return true
	}
	total := c.count + s.count
	c.mean += off * s.count / total
	c.squares += s.spread() + off*off*c.count*s.count/total
	if total > remembered {
		c.squares *= remembered / total
		total = remembered
	}
	c.count = total
	return false
}
