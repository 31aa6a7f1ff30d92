package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// spdx is the media type of an SBOM.
const spdx = "application/spdx+json"

// describe returns the SBOM of an image in SPDX: the modules that the compiler has recorded in the
// program, and the Debian packages.
func describe(name, version string, image v1.Image, program string, packages []debianPackage) ([]byte, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	const root = common.ElementID("Image")
	document := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      name + " " + version,
		DocumentNamespace: "https://github.com/resourcestack/autohealer/sbom/" + name + "/" + digest.Hex,
		// The same sources give the same bytes, so there is no time.
		CreationInfo: &v2_3.CreationInfo{Created: "1970-01-01T00:00:00Z", Creators: []common.Creator{{CreatorType: "Tool", Creator: "autohealer-images"}}},
		Packages: []*v2_3.Package{{
			PackageName: name, PackageSPDXIdentifier: root, PackageVersion: version, PackageDownloadLocation: "NOASSERTION",
			PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: digest.Hex}}, PrimaryPackagePurpose: "CONTAINER",
		}},
		Relationships: []*v2_3.Relationship{{RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", string(root)), Relationship: common.TypeRelationshipDescribe}},
	}
	add := func(name, version, kind, qualifiers string) {
		purl := "pkg:" + kind + "/" + name + "@" + strings.ReplaceAll(version, "+", "%2B") + qualifiers
		id := common.ElementID(fmt.Sprintf("Package-%d", len(document.Packages)))
		document.Packages = append(document.Packages, &v2_3.Package{
			PackageName: name, PackageSPDXIdentifier: id, PackageVersion: version, PackageDownloadLocation: "NOASSERTION",
			PackageExternalReferences: []*v2_3.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: purl}},
		})
		document.Relationships = append(document.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", string(root)), RefB: common.MakeDocElementID("", string(id)), Relationship: common.TypeRelationshipContains,
		})
	}
	goVersion := strings.TrimPrefix(built.GoVersion, "go")
	add("stdlib", goVersion, "golang", "")
	main := &debug.Module{Path: built.Main.Path, Version: version}
	for _, module := range append([]*debug.Module{main}, built.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		add(module.Path, module.Version, "golang", "")
	}
	for _, one := range packages {
		add(one.name, one.version, "deb/debian", "?arch="+one.architecture)
	}
	var text bytes.Buffer
	err = spdxjson.Write(document, &text, spdxjson.Indent("  "), spdxjson.EscapeHTML(false))
	return text.Bytes(), err
}
