//go:build race

package triage_test

const raced = true
