package history

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/resourcestack/autohealer/internal/testbed"
)

// The sets, health checks, policies and pools of the scripts.
const (
	deadlock = `{"type":"Deadlock","effect":"NoExecute","taintKey":"example.com/deadlock","conditions":{"KernelDeadlock":{"status":true}}}`
	ntp      = `{"type":"NTP","effect":"NoSchedule","taintKey":"example.com/ntp","conditions":{"NTPProblem":{"status":"true"}}}`

	out  = "example.com/deadlock:NoExecute"
	back = "example.com/deadlock:NoSchedule"
	late = "example.com/ntp:NoSchedule"

	// A health check for the default conditions after a minute, and one with two steps.
	rebootRef  = `{"apiVersion":"remediator.example.com/v1","kind":"RebootRemediationTemplate","namespace":"healing","name":"quick"}`
	replaceRef = `{"apiVersion":"remediator.example.com/v1","kind":"ReplaceRemediationTemplate","namespace":"healing","name":"all"}`
	signs      = `"unhealthyConditions":[{"type":"Ready","status":"False","duration":"1m"},{"type":"Ready","status":"Unknown","duration":"1m"}]`
	workers    = `{"remediationTemplate":` + rebootRef + `,` + signs + `}`
	twoSteps   = `{"escalatingRemediations":[{"order":2,"timeout":"10m","remediationTemplate":` + replaceRef + `},{"order":1,"timeout":"5m","remediationTemplate":` + rebootRef + `}],` + signs + `}`

	// A block that tolerates a bad disk for a minute, and the name of its rule.
	disk        = `"policies":[{"conditionType":"Disk","conditionStatus":"True","toleration":"1m"}]`
	badDisk     = `{"repair":{` + disk + `},"disruption":{"budgets":[{"nodes":"50%"}]}}`
	onPool      = "Repair/NodePool/blue"
	timedOut    = "ReadyTimeout/blue"
	plainPolicy = `{"selector":{},"repair":{` + disk + `},"remediationTemplate":` + rebootRef + `}`
)

// words are what a script writes as $name.
var words = map[string]string{
	"rails": roomyRails, "attempts": `"topology":[],"maxAttempts":{"limit":3,"window":"24h"}`, "deadlock": deadlock, "ntp": ntp, "out": out, "back": back, "late": late,
	// A set that waits for five minutes, and a set on Unknown.
	"night":   `{"type":"N","effect":"NoExecute","taintKey":"example.com/night","windows":[{"schedule":"0 22 * * *","timeZone":"UTC","duration":"4h"}],"conditions":{"A":{"status":true}}}`,
	"slow":    `{"type":"S","effect":"NoSchedule","taintKey":"example.com/slow","conditions":{"A":{"status":true,"duration":"5m"}}}`,
	"runtime": `{"type":"R","effect":"NoSchedule","taintKey":"example.com/r","conditions":{"Runtime":{"status":"unknown"}}}`,

	"rebootRef": rebootRef, "replaceRef": replaceRef, "workers": workers, "twoSteps": twoSteps,
	"one":   with(workers, `"maxUnhealthy":1`),
	"storm": with(workers, `"maxUnhealthy":1,"stormCooldownDuration":"5m"`),

	"disk": disk, "badDisk": badDisk, "onPool": onPool, "timedOut": timedOut, "plainPolicy": plainPolicy,
	"unbudgeted": strings.Replace(badDisk, `"50%"`, `"100%"`, 1),

	"controlPlane": controlPlaneLabel, "master": masterLabel, "exclude": excludeLabel, "leases": leaseNamespace, "peerLease": peerLease,
	"healthySince": healthyAnnotation, "timeout": timedOutAnnotation, "template": templateNameAnnotation, "nodeUID": nodeUIDAnnotation, "nodeName": nodeNameAnnotation,
	"mark": markAnnotation, "deadline": deadlineAnnotation, "ourVeto": ourVeto, "theirVeto": theirVeto, "record": recordAnnotation,

	"pause": pauseAnnotation, "windows": windowsAnnotation, "urgent": urgentAnnotation, "zone": corev1.LabelTopologyZone,
	"failing": strings.Replace(roomyRails, `"topology":[]`, `"topology":[],"correlatedFailure":{"threshold":"50%","minNodes":2,"window":"5m","keys":["zone"]}`, 1),
	"atNight": windowsAnnotation + "=0 22 * * * for 4h in UTC", "observe": modeAnnotation + "=Observe",
	"nightCheck": `{"remediationTemplate":` + replaceRef + `,"unhealthyConditions":[{"type":"A","status":"True","duration":"1m"}]}`,
}

var authors = map[string]testbed.Author{
	"us": us, "admin": admin, "kubelet": kubelet, "remediator": remediator, "peer": peer, "karpenter": karpenter, "unknown": unknownAuthor,
}

var wordsInScripts = regexp.MustCompile(`\$\w+`)

// verbs are the statements of scripts. Some of them tell scripts, so init fills the map.
var verbs map[string]any

func init() {
	verbs = map[string]any{
		"attempts": (*story).attempts, "guardrails": (*story).guardrails, "deleteGuardrails": (*story).deleteGuardrails, "cordon": (*story).cordon,
		"pass": (*story).pass, "node": (*story).node, "deleteNode": (*story).deleteNode, "condition": (*story).condition, "stamped": (*story).stamped,
		"label": (*story).label, "foreign": (*story).foreign, "takeAway": (*story).takeAway, "set": (*story).set, "deleteSet": (*story).deleteSet,
		"we": (*story).we, "weUnrecorded": (*story).weUnrecorded, "deadlocked": (*story).deadlocked, "by": (*story).by, "writeAgain": (*story).writeAgain,
		"annotateNode": (*story).annotateNode,

		"template": (*story).template, "deleteTemplate": (*story).deleteTemplate, "healthCheck": (*story).healthCheck, "deleteHealthCheck": (*story).deleteHealthCheck,
		"writeStatus": (*story).writeStatus, "lease": (*story).lease, "lock": (*story).lock, "unlock": (*story).unlock, "remediate": (*story).remediate,
		"annotate": (*story).annotate, "timesOut": (*story).timesOut, "reports": (*story).reports, "deleteObject": (*story).deleteObject,
		"startsDeletion": (*story).startsDeletion, "becomeUnhealthy": (*story).becomeUnhealthy, "removedForGood": (*story).removedForGood, "confirm": (*story).confirm,
		"treated": (*story).treated, "medik8sIsActive": (*story).medik8sIsActive,

		"pool": (*story).pool, "writePool": (*story).writePool, "deletePool": (*story).deletePool, "policy": (*story).policy, "writePolicy": (*story).writePolicy,
		"deletePolicy": (*story).deletePolicy, "changeTemplate": (*story).changeTemplate, "claim": (*story).claim, "startingNodes": (*story).startingNodes,
		"readyNodes": (*story).readyNodes, "setClaimCondition": (*story).setClaimCondition, "annotateClaim": (*story).annotateClaim, "marks": (*story).marks,
		"marksAs": (*story).marksAs, "deleteClaim": (*story).deleteClaim, "marksAndDeletes": (*story).marksAndDeletes, "unmarks": (*story).unmarks,
		"finishDeletion": (*story).finishDeletion, "deleteAtOnce": (*story).deleteAtOnce, "breakDisks": (*story).breakDisks, "repairs": (*story).repairs,
		"skipLedger": func(s *story) { s.skipsLedger = true }, "enter": func(s *story) { s.enter() },
		"enterNode": func(s *story, rule, node string) {
			s.enter(grant{rule, node, string(s.nodes[node].UID), s.nodes[node].ResourceVersion, ""})
		},
		"untaint": func(s *story, author testbed.Author, node string) {
			s.edit(author, node, func(n *corev1.Node) { n.Spec.Taints = nil })
		},
		"draft":  func(s *story, node, check, kind string) { s.drafted = s.draft(node, check, kind) },
		"makes":  func(s *story, author testbed.Author) { s.makes(author, s.drafted) },
		"disown": func(s *story) { s.drafted.SetOwnerReferences(nil) },
		"several": func(s *story) {
			s.templates["RebootRemediationTemplate"].SetAnnotations(map[string]string{severalAnnotation: ""})
		},
		"vetoPool": func(s *story, pool string) { s.pools[pool].SetAnnotations(map[string]string{ourVeto: "true"}) },
		"suspects": func(s *story, names ...string) { // the author of the last change is unknown
			s.by(unknownAuthor)
			for _, name := range names {
				s.made[len(s.made)-1].Suspects = append(s.made[len(s.made)-1].Suspects, authors[name])
			}
		},
		"managedBy": func(s *story, manager string) { // as the last change says
			s.made[len(s.made)-1].Object.Object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": manager, "operation": "Update", "time": "2026-03-01T12:00:00Z"}}
		},
		// replacedSlowly replaces nodes one after the other by nodes that keep their startup taint.
		"replacedSlowly": func(s *story, nodes ...string) {
			for _, node := range nodes {
				s.marksAndDeletes(node, timedOut)
				s.finishDeletion(node)
				s.startingNodes("blue", "new-"+node)
				s.condition("new-"+node, "Ready=True")
			}
		},
	}
	maps.Copy(verbs, holdVerbs)
	for verb, script := range railVerbs {
		verbs[verb] = func(s *story, nodes ...string) {
			for _, node := range nodes {
				s.tell(strings.ReplaceAll(script, "NODE", node))
			}
		}
	}
}

// tell runs a script: statements with a semicolon between them, each a verb and its
// arguments. A word $a is a constant, $a+x adds fields to a JSON object, $a~x adds fields to
// a repair block, and $a^x^y replaces x by y.
func (s *story) tell(script string) *story {
	for statement := range strings.SplitSeq(script, ";") {
		tokens := strings.Fields(statement)
		if len(tokens) == 0 {
			continue
		}
		verb, is := verbs[tokens[0]]
		if !is {
			s.tb.Fatalf("%q has no verb", statement)
		}
		call, of := reflect.ValueOf(verb), reflect.TypeOf(verb)
		args := []reflect.Value{reflect.ValueOf(s)}
		for i, token := range tokens[1:] {
			kind := of.In(min(i+1, of.NumIn()-1))
			if of.IsVariadic() && i+1 >= of.NumIn()-1 {
				kind = kind.Elem()
			}
			args = append(args, s.argument(kind, token))
		}
		call.Call(args)
	}
	return s
}

// argument converts a token to the type of a parameter.
func (s *story) argument(kind reflect.Type, token string) reflect.Value {
	var value any
	var err error
	switch reflect.Zero(kind).Interface().(type) {
	case string:
		value = expand(token)
	case int:
		value, err = strconv.Atoi(token)
	case bool:
		value = token == "true"
	case time.Duration:
		value, err = time.ParseDuration(token)
	case time.Time: // now, now+5m
		d := time.Duration(0)
		if token != "now" {
			d, err = time.ParseDuration(strings.TrimPrefix(token, "now"))
		}
		value = s.now.Add(d)
	case testbed.Author:
		value = authors[token]
	case act:
		value = s.act(token)
	case func(*unstructured.Unstructured):
		value = annotated(annotationsIn([]string{expand(token)}))
	}
	if err != nil || value == nil {
		s.tb.Fatalf("%q: %v", token, err)
	}
	return reflect.ValueOf(value)
}

func expand(token string) string {
	if token == `""` {
		return ""
	}
	text := wordsInScripts.ReplaceAllStringFunc(token, func(word string) string {
		value, is := words[word[1:]]
		if !is {
			panic("there is no word " + word)
		}
		return value
	})
	if base, change, found := strings.Cut(text, "^"); found {
		old, replacement, _ := strings.Cut(change, "^")
		return strings.Replace(base, old, replacement, 1)
	}
	if base, fields, found := strings.Cut(text, "~"); found {
		return withRepair(base, fields)
	}
	if base, fields, found := strings.Cut(text, "}+"); found {
		return with(base+"}", fields)
	}
	return text
}

// act reads a part of a write of ours, for example +set=key:Effect to place a taint, and
// -set=key:Effect to remove it.
func (s *story) act(token string) act {
	name, value, _ := strings.Cut(token, "=")
	value = expand(value)
	switch {
	case name[0] == '+':
		return s.place(name[1:], value)
	case name[0] == '-':
		return s.remove(name[1:], value)
	case name == "fence":
		return fence(value)
	case name == "remember":
		set, condition, _ := strings.Cut(value, "/")
		return remember(set, condition, s.now)
	case name == "forget":
		return forget
	case name == "untaint":
		return func(node *corev1.Node, _ *form) { node.Spec.Taints = nil }
	case name == "unrecord":
		return func(_ *corev1.Node, f *form) { f.Taints = nil }
	}
	s.tb.Fatalf("%q is no part of a write", token)
	return nil
}

func annotationsIn(tokens []string) map[string]string {
	annotations := map[string]string{}
	for _, token := range tokens {
		key, value, _ := strings.Cut(token, "=")
		annotations[key] = value
	}
	return annotations
}

func (s *story) annotateClaim(author testbed.Author, name string, annotations ...string) {
	s.changeClaim(author, name, annotated(annotationsIn(annotations)))
}

func (s *story) annotateNode(author testbed.Author, name string, annotations ...string) {
	s.edit(author, name, func(n *corev1.Node) {
		n.Annotations = maps.Clone(n.Annotations)
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		for key, value := range annotationsIn(annotations) {
			if n.Annotations[key] = value; value == "" {
				delete(n.Annotations, key)
			}
		}
	})
}

// by changes the author of the last change.
func (s *story) by(author testbed.Author) { s.made[len(s.made)-1].Author = author }

// deadlocked makes nodes unhealthy one after the other and gives them the right taints: the
// first two are evicted, others wait. The taint of n5=key:Effect is another one.
func (s *story) deadlocked(names ...string) {
	for _, name := range names {
		name, taint, given := strings.Cut(name, "=")
		if !given {
			taint = map[string]string{"n1": out, "n2": out, "n3": back, "n4": back}[name]
		}
		s.condition(name, "KernelDeadlock=True")
		s.we(name, s.place("deadlock", taint))
		s.pass(10 * time.Second)
	}
}

// treated has the first node in treatment with two steps.
func (s *story) treated() {
	s.tell("healthCheck workers $twoSteps; becomeUnhealthy n1; remediate n1 workers Reboot")
}

// medik8sIsActive has medik8s' own controller renew its Lease for a while.
func (s *story) medik8sIsActive() {
	for range 3 {
		s.lease(peer, "theirs", peerLease, "peer-1")
		s.pass(2 * time.Second)
	}
}

// with returns a spec with more fields.
func with(spec, fields string) string { return strings.TrimSuffix(spec, "}") + "," + fields + "}" }

// withRepair adds fields to the repair block of a pool.
func withRepair(spec, fields string) string {
	return strings.Replace(spec, `{"repair":{`, `{"repair":{`+fields+`,`, 1)
}

// tale is a story with its verdict: at least one violation of a kind that says the text and
// none of another kind, or no violation.
type tale struct {
	kind  Kind
	text  string
	steps []any // scripts, and functions of the story
}

func caught(kind Kind, text string, steps ...any) tale { return tale{kind, text, steps} }

func fine(steps ...any) tale { return tale{steps: steps} }

// judge tells the tales, each on a new story, and checks the verdicts.
func judge(t *testing.T, start func(testing.TB) *story, cfg Config, tales map[string]tale) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(tales)) {
		tale := tales[name]
		if tale.kind != "" {
			name = string(tale.kind) + "/" + name
		}
		t.Run(name, func(t *testing.T) {
			s, cfg := start(t), cfg
			for _, step := range tale.steps {
				switch step := step.(type) {
				case string:
					s.tell(step)
				case func(*story):
					step(s)
				default:
					t.Fatalf("%T is no step", step)
				}
			}
			if tale.kind == "" {
				cfg.FieldManager = us.FieldManager
				s.hasNoViolation(cfg)
				return
			}
			cfg.Unfinished = tale.kind != WrongEnd && len(cfg.Remediation) > 0
			report := s.caught(cfg, tale.kind)
			if !slices.ContainsFunc(report.Violations, func(v Violation) bool { return strings.Contains(v.Text, tale.text) }) {
				t.Errorf("nothing says %q: %s", tale.text, report)
			}
		})
	}
}
