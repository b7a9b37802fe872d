"""The catalogue of all data sets: their files, sources, licences and readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyparty.data.datasets import dataset_readers
from anyparty.data.datasets.dataset import Fields
from anyparty.data.datasets.downloads import File

_UCI = "https://archive.ics.uci.edu/static/public"
_FASHION = ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion")  # fmt: skip
_CIFAR = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class DatasetForm:
    """A form in which a data set may be on disk: its files and the function that reads them."""

    files: tuple[File, ...]
    read: Callable[[Sequence[Path]], Fields]


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A data set of the catalogue: its title, source, licence and forms, the preferred form first."""

    title: str
    task: Literal["classification", "regression"] = "classification"
    classes: tuple[str, ...] = ()
    source: str
    licence: str
    forms: tuple[DatasetForm, ...]


def _one(read: Callable[[Sequence[Path]], Fields], path: str, sha256: str = "", url: str = "") -> DatasetForm:
    return DatasetForm((File(path, sha256, url),), read)


def _many(read: Callable[[Sequence[Path]], Fields], folder: str) -> DatasetForm:
    names = ("X_train.npy", "y_train.npy", "X_test.npy", "y_test.npy", "classes.txt")
    return DatasetForm(tuple(File(f"{folder}/{name}") for name in names), read)


# The addresses have not been tested. The checksums of official files are copied from public repositories (UCI) and from
# TensorFlow Datasets (Fashion-MNIST and CIFAR).
CATALOGUE: dict[str, CatalogueEntry] = {
    "credit": CatalogueEntry(
        title="Default of Credit Card Clients",
        classes=("no default", "default"),
        source="I-C. Yeh, C-H. Lien, Expert Systems with Applications 36 (2009); "
        "https://archive.ics.uci.edu/dataset/350, doi:10.24432/C55S3H; its .xls must be saved as CSV",
        licence="CC BY 4.0",
        forms=(
            _one(
                dataset_readers.credit,
                "credit_default/UCI_Credit_Card.csv.gz",
                "cae8f8b644a05c7e5b5847b22e77d15fbd7ac136a093b2102a16cfb9502ec28f",
            ),
            _one(
                dataset_readers.credit,
                "credit_default/data.csv",
                "45bcf4df62ff2e237a74eb155cabfb4bbbc171219a0637daef44fdad07503dd0",
                f"{_UCI}/350/data.csv",
            ),
        ),
    ),
    "hapt": CatalogueEntry(
        title="Smartphone-Based Recognition of Human Activities and Postural Transitions",
        classes=(
            "WALKING",
            "WALKING_UPSTAIRS",
            "WALKING_DOWNSTAIRS",
            "SITTING",
            "STANDING",
            "LAYING",
            "STAND_TO_SIT",
            "SIT_TO_STAND",
            "SIT_TO_LIE",
            "LIE_TO_SIT",
            "STAND_TO_LIE",
            "LIE_TO_STAND",
        ),
        source="J. L. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita, Neurocomputing 171 (2016); "
        "https://archive.ics.uci.edu/dataset/341, doi:10.24432/C54G7M",
        licence="CC BY 4.0",
        forms=(
            _one(
                dataset_readers.hapt,
                "hapt/hapt.npz",
                "4404782c2f640f0aff56e62385f79d6a3f4dd2fe5acde2e39996dea5eb1477dc",
            ),
            _one(
                dataset_readers.hapt_zip,
                "hapt/hapt.zip",
                "4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
                f"{_UCI}/341/smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
            ),
        ),
    ),
    "isolet": CatalogueEntry(
        title="ISOLET, spoken letters",
        classes=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        source="R. Cole, M. Fanty (1991); https://archive.ics.uci.edu/dataset/54, doi:10.24432/C51G69",
        licence="CC BY 4.0",
        forms=(
            _one(
                dataset_readers.isolet,
                "isolet/isolet.npz",
                "289a936cea27a7ecd5d4de640828019bf2a021fd7c98e48eb0bf86c49a9b338d",
            ),
            _one(
                dataset_readers.isolet_zip,
                "isolet/isolet.zip",
                "fe2e0d45f1057d112e051d309070992fc178e7f6922cc7b4e8b2bd310303a053",
                f"{_UCI}/54/isolet.zip",
            ),
        ),
    ),
    "fashion-mnist": CatalogueEntry(
        title="Fashion-MNIST",
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        source="H. Xiao, K. Rasul, R. Vollgraf (Zalando), arXiv:1708.07747; "
        "https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        forms=(
            _one(
                dataset_readers.fashion_mnist,
                "fashion_mnist/fashion_mnist.npz",
                "5b03f17c6e534afaf4a985a4d2bdc1e7268a2a66b1b5e0021423916773fd6c78",
            ),
            DatasetForm(
                tuple(
                    File(f"fashion_mnist/{name}.gz", sha256, f"{_FASHION}/{name}.gz")
                    for name, sha256 in (
                        ("train-images-idx3-ubyte", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                        ("train-labels-idx1-ubyte", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                        ("t10k-images-idx3-ubyte", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                        ("t10k-labels-idx1-ubyte", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
                    )
                ),
                dataset_readers.fashion_mnist,
            ),
        ),
    ),
    "cifar10": CatalogueEntry(
        title="CIFAR-10",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009); "
        "https://www.cs.toronto.edu/~kriz/cifar.html, the binary version",
        licence="none stated; cite the report",
        forms=(
            _one(
                dataset_readers.cifar10,
                "cifar10/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                f"{_CIFAR}/cifar-10-binary.tar.gz",
            ),
            _one(
                dataset_readers.cifar10_subset,
                "cifar10_subset/cifar10_subset.npz",
                "fe630ddc932fbd7487a8f99c0a96a8cfaee938c25458607b5a2a1a2fcc3171ea",
            ),
        ),
    ),
    "cifar100": CatalogueEntry(
        title="CIFAR-100",
        source="A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009); "
        "https://www.cs.toronto.edu/~kriz/cifar.html, the binary version",
        licence="none stated; cite the report",
        forms=(
            _one(
                dataset_readers.cifar100,
                "cifar100/cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                f"{_CIFAR}/cifar-100-binary.tar.gz",
            ),
        ),
    ),
    "breast-cancer": CatalogueEntry(
        title="Breast Cancer Wisconsin (Diagnostic)",
        classes=("malignant", "benign"),
        source="W. Wolberg, O. Mangasarian, N. Street, W. Street (1995); https://archive.ics.uci.edu/dataset/17, "
        "doi:10.24432/C5DW2B; from scikit-learn",
        licence="CC BY 4.0",
        forms=(DatasetForm((), dataset_readers.breast_cancer),),
    ),
    "google-cluster": CatalogueEntry(
        title="Google cluster trace 2011, by virtual machine",
        task="regression",
        source="C. Reiss, J. Wilkes, J. Hellerstein, Google cluster-usage traces v2; aggregated in "
        "https://github.com/dnhua/CPU-and-Memory-resource-usage-from-Google-Cluster-Data: its text files as one array "
        "usage float32 [1600, 288, 2] and the names vm in gcd_vms.npz",
        licence="CC BY 4.0",
        forms=(
            _one(
                dataset_readers.google_cluster,
                "google_cluster_vms/gcd_vms.npz",
                "2b6f91764cfa7313a8c8d076c84e28cd1400cf608399c5584f0a77420581dbbc",
            ),
        ),
    ),
    "mimic3": CatalogueEntry(
        title="MIMIC-III, length of stay",
        source="A. Johnson et al., Scientific Data 3 (2016); https://physionet.org/content/mimiciii, on application",
        licence="PhysioNet Credentialed Health Data License",
        forms=(_one(dataset_readers.mimic3, "mimic3/mimic3.csv"),),
    ),
    "mimic4": CatalogueEntry(
        title="MIMIC-IV, mortality in intensive care",
        classes=("survived", "died"),
        source="A. Johnson et al., https://physionet.org/content/mimiciv, on application; LASER-VFL: version 1.0, "
        "chronic kidney disease, prepared by the pipeline of Gupta et al. (ML4H 2022)",
        licence="PhysioNet Credentialed Health Data License",
        forms=(_one(dataset_readers.mimic4, "mimic4/mimic4.npz"),),
    ),
    "modelnet10": CatalogueEntry(
        title="ModelNet10, views of objects",
        source="Z. Wu et al., 3D ShapeNets, CVPR 2015; https://modelnet.cs.princeton.edu, rendered from 12 sides",
        licence="for research; see the site",
        forms=(_many(dataset_readers.views, "modelnet10"),),
    ),
    "modelnet40": CatalogueEntry(
        title="ModelNet40, views of objects",
        source="Z. Wu et al., 3D ShapeNets, CVPR 2015; https://modelnet.cs.princeton.edu, rendered from 12 sides",
        licence="for research; see the site",
        forms=(_many(dataset_readers.views, "modelnet40"),),
    ),
    "imagenet100": CatalogueEntry(
        title="100 classes of ImageNet",
        source="O. Russakovsky et al., IJCV 115 (2015); https://www.image-net.org, on application",
        licence="for non-commercial research; see the site",
        forms=(_many(dataset_readers.images, "imagenet100"),),
    ),
    "cmu-mosei": CatalogueEntry(
        title="CMU-MOSEI, sentiment",
        task="regression",
        source="A. Zadeh et al., ACL 2018; http://multicomp.cs.cmu.edu/resources/cmu-mosei-dataset",
        licence="for research; see the site",
        forms=(_one(dataset_readers.mosei, "cmu-mosei/mosei.npz"),),
    ),
}
