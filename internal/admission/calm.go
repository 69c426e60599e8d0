package admission

import "math"

// calmTime is what requests of a route take where none queues inside the server: the mean of some
// hundred, and their variance. Samples are gathered until all that began in the same time have
// ended, as the short ones end first and alone would tell too short a time.
type calmTime struct {
	mean, variance, count float64
	gathered              sample
}

// sample is a number of service times.
type sample struct{ count, sum, squares float64 }

func (s *sample) add(x float64) {
	s.count++
	s.sum += x
	s.squares += x * x
}

func (s *sample) mean() float64     { return s.sum / s.count }
func (s *sample) variance() float64 { return max(0, s.squares/s.count-s.mean()*s.mean()) }

// learn takes in what has been gathered. A mean that is more than three standard errors off is
// no accident: the server has changed, and what was known is dropped.
func (c *calmTime) learn() {
	s := c.gathered
	c.gathered = sample{}
	if s.count == 0 {
		return
	}
	if math.Abs(s.mean()-c.mean) > 3*math.Sqrt(c.variance/s.count) {
		c.mean, c.variance, c.count = s.mean(), s.variance(), s.count
		return
	}
	c.count = min(c.count+s.count, recent)
	weight := min(s.count/c.count, 1)
	off := s.mean() - c.mean
	c.mean += weight * off
	c.variance += weight * (s.variance() + off*off - c.variance)
}
