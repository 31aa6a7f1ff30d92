package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// startLimit and sceneLimit are how long the start and a scene may take
	// before the demo gives up.
	startLimit = 3 * time.Minute
	sceneLimit = 2 * time.Minute
)

// demo is what is to be shown, and how.
type demo struct {
	// once ends the demo after the story.
	once bool
	// pause before each scene lets a person read the one before.
	pause time.Duration
	// controller, agent and diskWatch are their programs; empty builds them.
	controller, agent, diskWatch string
	// kmsg has the agent read the log of this machine's kernel, and the story write
	// there; otherwise that is a file.
	kmsg bool
	// karpenter adds a real Karpenter to the cluster.
	karpenter bool
	// story returns the scenes.
	story func(s *stage) []scene
}

// scene is one thing that happens, and what must come of it.
type scene struct {
	title string
	play  func(ctx context.Context) error
}

// run builds the stage, plays the story and, unless it is to be played only
// once, lets everything stay until ctx ends.
func (d demo) run(ctx context.Context, out io.Writer) (err error) {
	if d.kmsg {
		if err := (kernelLog{kernelDevice}).check(); err != nil {
			return err
		}
	}
	tell := newTeller(out)
	var s *stage
	err = within(ctx, startLimit, func(ctx context.Context) (err error) {
		s, err = build(ctx, tell, d)
		return err
	})
	defer func() { err = errors.Join(err, s.strike()) }()
	if err != nil {
		return fmt.Errorf("%w%s", err, s.lastWords(ctx))
	}
	began := time.Now()
	scenes := d.story(s)
	if err := d.play(ctx, tell, scenes); err != nil {
		return fmt.Errorf("%w%s", err, s.lastWords(ctx))
	}
	tell.print("")
	tell.say("%d scenes in %s, every step as it should be; %s", len(scenes), span(time.Since(began)), s.sum())
	if !d.once {
		s.stay(ctx)
	}
	return nil
}

// sum is what is to be said of the story as a whole.
func (s *stage) sum() string {
	if s.karpenter != nil {
		return "all machines that were given up have been replaced"
	}
	return fmt.Sprintf("never more than %d nodes were emptied at once", ask(s.onlooker, func(s *sight) int { return s.most[kernelSet] }))
}

// play plays the scenes. The error names the one that went wrong.
func (d demo) play(ctx context.Context, tell *teller, scenes []scene) error {
	for i, scene := range scenes {
		select {
		case <-time.After(d.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		tell.open(fmt.Sprintf("%d. %s", i+1, scene.title))
		if err := within(ctx, sceneLimit, scene.play); err != nil {
			return fmt.Errorf("scene %d, %q: %w", i+1, scene.title, err)
		}
	}
	return nil
}

// within lets something take so long and no longer.
func within(ctx context.Context, limit time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	return do(ctx)
}
