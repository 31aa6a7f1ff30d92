// Package pools tries the product on clusters whose nodes a real Karpenter makes: nodes
// fall sick, or never become ready, and the writes that were recorded tell what was done
// about it, by whom and when. It promises that what a test says of a pool is read off that
// recording. It refuses to take a wait for a proof: that nothing was done is asked when
// something else has shown that it could have been.
package pools
