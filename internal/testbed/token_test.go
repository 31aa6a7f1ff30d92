package testbed

import (
	"errors"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestPodTokenIsThatOfAPodAndEnds(t *testing.T) {
	c := New(t, Config{})
	node := createNode(t, c, "short")
	config, err := c.ServiceAccountConfig(t.Context(), "default", "agent")
	testkit.Must(t, err)
	testkit.Value(c.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-1"},
		Spec:       corev1.PodSpec{NodeName: node.Name, ServiceAccountName: "agent", AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}, metav1.CreateOptions{})).Must(t)
	if config.BearerToken, err = c.PodToken(t.Context(), "default", "agent-1", 3*time.Second); err != nil {
		t.Fatal(err)
	}
	who := func() (authenticationv1.UserInfo, error) {
		review, err := clientFor(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return review.Status.UserInfo, err
	}
	user := testkit.Value(who()).Must(t)
	testkit.Check(t, user.Username == "system:serviceaccount:default:agent", "user %q", user.Username)
	for key, want := range map[string]string{"pod-name": "agent-1", "node-name": node.Name, "node-uid": string(node.UID)} {
		if got := user.Extra["authentication.kubernetes.io/"+key]; !slices.Equal(got, authenticationv1.ExtraValue{want}) {
			t.Errorf("%s is %q, not %q", key, got, want)
		}
	}
	testkit.Eventually(t, "the token to expire", func() error {
		if _, err := who(); !apierrors.IsUnauthorized(err) {
			return errors.Join(errors.New("the token is accepted"), err)
		}
		return nil
	})
	testkit.Value(c.PodToken(t.Context(), "default", "missing", time.Second)).Fails(t, "missing") // the token of a missing pod
}
