// Package site pins the version of Hugo, which makes the site of the documentation from docs/. Its
// templates are in layouts.
package site
