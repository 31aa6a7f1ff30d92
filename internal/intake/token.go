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

// digest is all that is kept of a token.
type digest [sha256.Size]byte

// shortestToken is what cannot be guessed by trying.
const shortestToken = 16

// patience is how long files of tokens are waited for. A file system that does not answer
// holds up nothing else: who is known by what is on it is not known meanwhile.
const patience = 100 * time.Millisecond

// tokenOf is what is in trouble if a token cannot be read.
func tokenOf(name string) string { return "the token of " + name }

// readTokens has the files of all tokens read, except those that are still being read
// since the last time.
func (in *Intake) readTokens() {
	in.mu.Lock()
	var reads sync.WaitGroup
	for _, d := range in.desks {
		d.mu.Lock()
		path := d.source.TokenFile
		d.mu.Unlock()
		if path == "" || in.reading[d] == path {
			continue
		}
		in.reading[d] = path
		reads.Go(func() {
			sum, err := in.read(path)
			in.learn(d, path, sum, err)
		})
	}
	in.mu.Unlock()
	read := make(chan struct{})
	go func() { reads.Wait(); close(read) }()
	select {
	case <-read:
	case <-time.After(patience):
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for d, path := range in.reading {
		if slices.Contains(in.desks, d) {
			in.note(tokenOf(d.name), fmt.Errorf("reading the token in %s: the file system does not answer", path))
		}
	}
}

// learn notes what a file of a token says.
func (in *Intake) learn(d *desk, path string, sum digest, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.reading[d] == path {
		delete(in.reading, d)
	}
	if !slices.Contains(in.desks, d) {
		return
	}
	if twin := in.twin(d, &sum); err == nil && twin != "" {
		err = fmt.Errorf("reading the token in %s: it is that of %s as well; give each its own", path, twin)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.source.TokenFile != path {
		return // it is another one by now, which is read next
	}
	if d.token = &sum; err != nil {
		d.token = nil
	}
	in.note(tokenOf(d.name), err)
}

// twin returns the name of another who has this token, where nothing else tells the two
// apart. It is locked.
func (in *Intake) twin(d *desk, sum *digest) string {
	d.mu.Lock()
	shared := d.source.isShared()
	d.mu.Unlock()
	for _, other := range in.desks {
		if !shared || other == d {
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

// Tokens reads the files of the tokens on this machine, once. The error says which two
// sources have the same; that some cannot be read may be right elsewhere.
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

// readToken reads the file of a token. A pipe would be waited for, so that it must be an
// ordinary one.
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
		return digest{}, fmt.Errorf("reading the token in %s: it is no ordinary file; write the token to one", path)
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
	if len(text) < shortestToken {
		return digest{}, fmt.Errorf("it has %d letters; write at least %d, at random", len(text), shortestToken)
	}
	return sha256.Sum256([]byte(text)), nil
}

// is says whether a token is the one, in a time that does not tell how nearly it is.
func (d *digest) is(sum digest) bool {
	return d != nil && subtle.ConstantTimeCompare(d[:], sum[:]) == 1
}
