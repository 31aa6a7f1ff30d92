package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// release is where the maintainers of a program publish it for Linux.
type release struct {
	host string // without https://
	path string // of the program, or of an archive that contains it
	sums string // path of a file with the SHA-256 checksum
	file string // of the program in the archive; empty if path is the program
}

// The variables of the environment that concern downloads.
const (
	// downloadVariable set to 1 allows downloads. Otherwise all programs are compiled.
	downloadVariable = "DOWNLOAD"
	// mirrorVariable is the URL of a server that has the files of all hosts, each under the name of
	// its host, for example https://mirror.example.com/dl.k8s.io/release/v1.36.3/...
	mirrorVariable = "DOWNLOAD_MIRROR"
)

// url returns the URL of a path of the release, with the mirror if there is one.
func (r release) url(path string) string {
	path = strings.NewReplacer("OS", runtime.GOOS, "ARCH", runtime.GOARCH).Replace(path)
	if mirror := os.Getenv(mirrorVariable); mirror != "" {
		return strings.TrimSuffix(mirror, "/") + "/" + r.host + path
	}
	return "https://" + r.host + path
}

// downloader downloads programs. It tries a host that cannot be reached, or that stops sending, only
// once, so that a machine without a network does not wait for each program.
type downloader struct {
	client *http.Client
	stall  time.Duration    // a download ends when nothing arrives for so long
	failed map[string]error // by host
}

func newDownloader() *downloader {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout = 5*time.Second, 10*time.Second
	return &downloader{client: &http.Client{Transport: transport}, stall: 30 * time.Second, failed: map[string]error{}}
}

// fetch downloads a program to a file and checks its checksum. The file is incomplete after an error.
func (d *downloader) fetch(ctx context.Context, r release, to *os.File, show *progress) error {
	want, err := d.checksum(ctx, r)
	if err != nil {
		return err
	}
	body, size, err := d.get(ctx, r.url(r.path))
	if err != nil {
		return err
	}
	defer body.Close()
	sum := sha256.New()
	counted := &counter{to: sum, total: size, show: show}
	if err := r.write(to, io.TeeReader(body, counted)); err != nil {
		return fmt.Errorf("%s: %w", r.url(r.path), err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("%s: its SHA-256 checksum is %s, and %s says %s", r.url(r.path), got, r.url(r.sums), want)
	}
	return to.Chmod(0o755)
}

// write copies the program, and reads its source to the end, because the checksum is that of all.
func (r release) write(to io.Writer, from io.Reader) error {
	if r.file == "" {
		_, err := io.Copy(to, from)
		return err
	}
	unzipped, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	name := strings.NewReplacer("OS", runtime.GOOS, "ARCH", runtime.GOARCH).Replace(r.file)
	files, found := tar.NewReader(unzipped), false
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if header.Name == name {
			found = true
			if _, err := io.Copy(to, files); err != nil { //nolint:gosec // the checksum follows
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("the archive does not contain %s", name)
	}
	_, err = io.Copy(io.Discard, from)
	return err
}

// checksum returns the published checksum: the only one in the file, or the one with the name of the
// download.
func (d *downloader) checksum(ctx context.Context, r release) (string, error) {
	body, _, err := d.get(ctx, r.url(r.sums))
	if err != nil {
		return "", err
	}
	defer body.Close()
	name := path.Base(r.url(r.path))
	lines := bufio.NewScanner(io.LimitReader(body, 1<<20))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 1 || len(words) == 2 && strings.TrimPrefix(words[1], "*") == name {
			return strings.ToLower(words[0]), nil
		}
	}
	return "", cmp.Or(lines.Err(), fmt.Errorf("%s has no checksum of %s", r.url(r.sums), name))
}

// get starts a download.
func (d *downloader) get(ctx context.Context, address string) (body io.ReadCloser, size int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	host := request.URL.Host
	if d.failed[host] != nil {
		return nil, 0, d.failed[host]
	}
	response, err := d.client.Do(request)
	if err != nil {
		if failed := (&url.Error{}); errors.As(err, &failed) {
			err = failed.Err
		}
		d.failed[host] = fmt.Errorf("%s cannot be reached: %w", host, err)
		return nil, 0, d.failed[host]
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, 0, fmt.Errorf("%s: %s", address, response.Status)
	}
	return &download{ReadCloser: response.Body, from: d, host: host}, response.ContentLength, nil
}

// download is the body of a response. It ends with an error when nothing arrives for a while.
type download struct {
	io.ReadCloser
	from       *downloader
	host       string
	hasStalled atomic.Bool
}

func (d *download) Read(into []byte) (int, error) {
	timer := time.AfterFunc(d.from.stall, func() {
		d.hasStalled.Store(true)
		d.Close() // ends the call of Read
	})
	defer timer.Stop()
	n, err := d.ReadCloser.Read(into)
	if err != nil && d.hasStalled.Load() {
		err = fmt.Errorf("%s has sent nothing for %s", d.host, d.from.stall)
		d.from.failed[d.host] = err
	}
	return n, err
}

// counter shows how much was downloaded.
type counter struct {
	to          io.Writer
	done, total int64
	show        *progress
}

func (c *counter) Write(text []byte) (int, error) {
	c.done += int64(len(text))
	c.show.step(fmt.Sprintf("downloading, %d of %d MB", c.done>>20, c.total>>20))
	return c.to.Write(text)
}
