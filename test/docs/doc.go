// Package docs tests the documentation: every command block of the pages runs in a real
// cluster, every relative link leads to a file and a heading, and no page is too long. It does
// not check what the commands print.
package docs
