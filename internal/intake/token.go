package intake

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// digest is the hash of a token. The intake keeps no token in plain text.
type digest [sha256.Size]byte

// minTokenLength is the length below which a token could be guessed.
const minTokenLength = 16

// tokenReadTimeout is how long the intake waits for token files. A file system that does not
// answer delays nothing else; sources with a token on it are unknown meanwhile.
const tokenReadTimeout = 100 * time.Millisecond

// tokenName returns the name of a token in the list of failures.
func tokenName(name string) string { return "the token of " + name }

// readTokens reads all token files, except those whose previous read has not ended.
func (in *Intake) readTokens() {
	in.mu.Lock()
	var reads sync.WaitGroup
	for _, src := range in.sources {
		src.mu.Lock()
		path := src.source.TokenFile
		src.mu.Unlock()
		if path == "" || in.reading[src] == path {
			continue
		}
		in.reading[src] = path
		reads.Go(func() {
			sum, err := in.read(path)
			in.tokenRead(src, path, sum, err)
		})
	}
	in.mu.Unlock()
	read := make(chan struct{})
	go func() { reads.Wait(); close(read) }()
	select {
	case <-read:
	case <-time.After(tokenReadTimeout):
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for src, path := range in.reading {
		if slices.Contains(in.sources, src) {
			in.setFailureLocked(tokenName(src.name), fmt.Errorf("reading the token in %s: the file system does not answer", path))
		}
	}
}

// tokenRead handles the content of a token file.
func (in *Intake) tokenRead(src *sourceState, path string, sum digest, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.reading[src] == path {
		delete(in.reading, src)
	}
	if !slices.Contains(in.sources, src) {
		return
	}
	if other := in.sameToken(src, &sum); err == nil && other != "" {
		err = fmt.Errorf("reading the token in %s: it is that of %s as well; give each its own", path, other)
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.source.TokenFile != path {
		return // the source has another file by now, which is read next
	}
	if src.token = &sum; err != nil {
		src.token = nil
	}
	in.setFailureLocked(tokenName(src.name), err)
}

// sameToken returns the name of another source with this token, if only the token
// distinguishes the two. The caller holds mu.
func (in *Intake) sameToken(src *sourceState, sum *digest) string {
	src.mu.Lock()
	shared := src.source.isShared()
	src.mu.Unlock()
	for _, other := range in.sources {
		if !shared || other == src {
			continue
		}
		other.mu.Lock()
		same := other.source.isShared() && other.token.is(*sum)
		other.mu.Unlock()
		if same {
			return other.name
		}
	}
	return ""
}

// Tokens reads the token files on this machine once. It returns the files that cannot be read,
// which may be fine on another machine, and an error for sources with the same token.
func (s Setup) Tokens() (unread []string, err error) {
	owner := map[digest]string{}
	for i := range s.Sources {
		source := &s.Sources[i]
		if source.TokenFile == "" {
			continue
		}
		sum, wrong := readToken(source.TokenFile)
		at := fmt.Sprintf("sources[%d].tokenFile: ", i)
		switch {
		case wrong != nil:
			unread = append(unread, at+wrong.Error())
		case !source.isShared():
		case owner[sum] != "":
			err = errors.Join(err, fmt.Errorf("%sit has the token of %s; give each its own", at, owner[sum]))
		default:
			owner[sum] = source.Name
		}
	}
	return unread, err
}

// readToken reads a token file. It accepts only regular files, because reading a pipe could
// block.
func readToken(path string) (digest, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return digest{}, fmt.Errorf("reading a token: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return digest{}, fmt.Errorf("reading a token: %w", err)
	}
	if !info.Mode().IsRegular() {
		return digest{}, fmt.Errorf("reading the token in %s: it is not a regular file; write the token to one", path)
	}
	text, err := io.ReadAll(io.LimitReader(file, 4<<10))
	if err != nil {
		return digest{}, fmt.Errorf("reading a token: %w", err)
	}
	sum, err := parseToken(string(text))
	if err != nil {
		return digest{}, fmt.Errorf("reading the token in %s: %w", path, err)
	}
	return sum, nil
}

func parseToken(text string) (digest, error) {
	text = strings.TrimSpace(text)
	if written, ok := strings.CutPrefix(text, "sha256:"); ok {
		sum, err := hex.DecodeString(written)
		if err != nil || len(sum) != sha256.Size {
			return digest{}, errors.New("what follows sha256: is no sum; write 64 hexadecimal digits")
		}
		return digest(sum), nil
	}
	if len(text) < minTokenLength {
		return digest{}, fmt.Errorf("it has %d letters; write at least %d, at random", len(text), minTokenLength)
	}
	return sha256.Sum256([]byte(text)), nil
}

// is compares in constant time.
func (d *digest) is(sum digest) bool {
	return d != nil && subtle.ConstantTimeCompare(d[:], sum[:]) == 1
}
