package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// guardrailsLine is the line of the schema of the chart's values that has the spec of Guardrails.
var guardrailsLine = regexp.MustCompile(`(?m)^    "guardrailsSpec": .*$`)

// writeSchema writes the fields of Guardrails into the schema of the chart's values, so that Helm
// refuses wrong ones before it installs anything.
func writeSchema(folder string) error {
	spec, err := readSpec(folder, "guardrails")
	if err != nil {
		return err
	}
	// The value enforce has both.
	delete(spec, "mode")
	delete(spec, "enforce")
	fields := schema{}
	for name, field := range spec {
		fields[name] = valueSchema(field)
	}
	var line bytes.Buffer
	line.WriteString(`    "guardrailsSpec": `)
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(schema{"type": "object", "additionalProperties": false, "properties": fields}); err != nil {
		return err
	}
	path := filepath.Join(folder, "chart", "values.schema.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if found := guardrailsLine.FindAllIndex(text, -1); len(found) != 1 {
		return fmt.Errorf("%s has %d lines of guardrailsSpec, want 1", path, len(found))
	}
	line.Truncate(line.Len() - 1)
	text = guardrailsLine.ReplaceAllLiteral(text, append(line.Bytes(), ','))
	return os.WriteFile(path, text, 0o644)
}

// The rules of the CRDs that JSON Schema can express.
var (
	matchRule = regexp.MustCompile(`self\.matches\('([^']*)'\)`)
	rangeRule = regexp.MustCompile(`^self >= ([0-9]+) && self <= ([0-9]+)$`)
)

// valueSchema returns the JSON schema of a value for a schema of a CRD.
func valueSchema(of schema) schema {
	made := schema{}
	for _, keyword := range []string{"type", "anyOf", "enum", "maxLength", "maxItems", "required"} {
		if of[keyword] != nil {
			made[keyword] = of[keyword]
		}
	}
	rules, _ := of["x-kubernetes-validations"].([]any)
	for _, each := range rules {
		rule := fmt.Sprint(each.(schema)["rule"])
		if found := matchRule.FindStringSubmatch(rule); found != nil {
			made["pattern"] = found[1]
		}
		if found := rangeRule.FindStringSubmatch(rule); found != nil {
			made["minimum"], _ = strconv.Atoi(found[1])
			made["maximum"], _ = strconv.Atoi(found[2])
		}
	}
	if items, is := of["items"].(schema); is {
		made["items"] = valueSchema(items)
	}
	if properties, is := of["properties"].(schema); is {
		fields := schema{}
		for name, field := range properties {
			fields[name] = valueSchema(field.(schema))
		}
		made["additionalProperties"], made["properties"] = false, fields
	}
	return made
}
