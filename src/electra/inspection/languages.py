"""A guess at the language of a text: by its script where that decides, by frequent function words elsewhere.

The guess is small on purpose. Where words do not decide clearly, the answer is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from electra.corpus.scripts import count_characters, script_shares

_BY_SCRIPT = {
    "Armenian": "Armenian",
    "Bengali": "Bengali or Assamese",
    "Ethiopic": "Amharic or Tigrinya",
    "Georgian": "Georgian",
    "Greek": "Greek",
    "Gujarati": "Gujarati",
    "Gurmukhi": "Punjabi",
    "Hangul": "Korean",
    "Hebrew": "Hebrew or Yiddish",
    "Kannada": "Kannada",
    "Khmer": "Khmer",
    "Lao": "Lao",
    "Malayalam": "Malayalam",
    "Myanmar": "Burmese",
    "Oriya": "Odia",
    "Sinhala": "Sinhala",
    "Tamil": "Tamil",
    "Telugu": "Telugu",
    "Thai": "Thai",
    "Tibetan": "Tibetan or Dzongkha",
}
_KANA = ("Hiragana", "Katakana")
_KANA_SHARE = 0.1
"""Japanese prose is about half kana; a Chinese text has next to none."""

_FUNCTION_WORDS = {
    "Latin": {
        "Catalan": "de la que els el en per un una no és amb les del es al aquest aquesta ha com són més ser però",
        "Croatian or Bosnian": "je se na da su za od koji nije kao ili ne što bi iz biti ako ovaj samo može ova sve",
        "Czech or Slovak": "se na je že do to jako není jsou byl který nebo ale podle sa ako nie sú alebo môže už",
        "Danish or Norwegian": "og det er en at på af av til som for med den ikke de har kan skal fra eller et",
        "Dutch": "de het een van en in is dat op te zijn met voor niet aan er om ook als bij wordt deze",
        "English": "the of and to in is that for it as with on be was are this by not or from at which an",
        "Estonian": "ja on ei et see ole või kui oli mis ning seda aga ta mida oma need saab peab selle",
        "Finnish": "ja on ei se että oli hän joka mutta ovat kun tai myös jos niin kuin sen tämä voi ole",
        "French": "de la le les et des en un une est que dans pour qui du pas au sur ce avec par plus ne",
        "German": "der die und das in den von zu ist mit nicht ein eine für auf werden des sich dem als kann wurde",
        "Hungarian": "az és hogy nem is egy ez de csak van meg ha már mint volt vagy kell el lehet",
        "Indonesian or Malay": "yang dan di ini itu dengan untuk tidak dari dalam adalah akan pada ke oleh anda atau",
        "Italian": "di che la il un per in una non sono con si da come del le della ma gli nel essere questo",
        "Lithuanian": "ir yra kad į ne su iš tai kaip bet ar jis buvo šis gali nuo turi arba jūsų būti už",
        "Polish": "na się nie do to że jest jak po od za przez dla są oraz tego być lub może ten",
        "Portuguese": "de que não do da em um para com uma os no se na por mais as dos como foi ou são",
        "Romanian": "de și în la cu care din pe nu un este că se mai pentru sau sunt prin fi acest au",
        "Slovenian": "in je na za da se ki ne so pa po ali od ni to tudi kot pri bi biti lahko ta če iz",
        "Spanish": "de la que el en los se del las un por con no una para es al lo como su más este",
        "Swedish": "och att det som en på är av för med den till inte om ett har de kan eller från vid",
        "Turkish": "bir ve bu da de için ile ne olarak çok daha gibi var olan kadar sonra en ama değil veya her",
        "Vietnamese": "và của là có không được cho trong một các với này đã để những người khi từ bạn phải",
    },
    "Cyrillic": {
        "Bulgarian": "на да за се от не са по че това като но или до има бъде към през само може",
        "Russian": "не на что он как это по но из за от для так же или при если быть бы был может",
        "Serbian or Macedonian": "је да се на за од су са не као што би или али која који бити во со ќе ова овај",
        "Ukrainian": "не на що та до як це за але від для про або при якщо бути ви може цей по",
    },
    "Arabic": {
        "Arabic": "من في على إلى أن هذا لا عن التي مع هذه ما كان أو الذي لم هو تم هل يمكن بين قد ذلك كل",
        "Persian": "در به از که این را با است برای آن یک شما می شود یا بر تا کرد نیست شده کنید خود هر",
        "Urdu": "کے میں کی ہے اور سے کا کو اس یہ ہیں نے پر نہیں کہ ہو ایک لیے آپ بھی کر تھا گیا یا",
    },
    "Devanagari": {
        "Hindi": "है के में की से को और का नहीं हैं पर यह एक कि इस लिए हो कर या आप भी था जा गया",
        "Marathi": "आहे आणि या हे नाही ते च्या एक आहेत होते मध्ये तर ही करा किंवा असे साठी आपण हा",
        "Nepali": "को मा छन् हो यो लागि पनि गर्न भएको तपाईं गर्नुहोस् छैन वा यस एक भने थियो ले",
    },
}
_WORDS = {
    script: {language: frozenset(words.split()) for language, words in languages.items()}
    for script, languages in _FUNCTION_WORDS.items()
}
_FEWEST_HITS = 3
_LEAST_SHARE = 0.05
_LEAST_LEAD = 1.25
"""A language must have so many times the hits of the next one."""

_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|[\u0300-\u036f\u0900-\u0963\u200c\u200d])*")


def guess_language(text: str) -> str | None:
    """The language that most of the text seems to be in; None where the guess would be a poor one."""
    shares = script_shares(count_characters([text]))
    if not shares:
        return None
    main = next(iter(shares))
    kana = sum(shares.get(name, 0.0) for name in _KANA)
    if main == "Han" or main in _KANA:
        return "Japanese" if kana >= _KANA_SHARE * (kana + shares.get("Han", 0.0)) else "Chinese"
    if main in _BY_SCRIPT:
        return _BY_SCRIPT[main]
    return _by_words(text, _WORDS[main]) if main in _WORDS else None


def _by_words(text: str, languages: Mapping[str, frozenset[str]]) -> str | None:
    words = [word.lower() for word in _WORD.findall(text) if len(word) > 1]  # `%s` leaves single letters
    hits = {language: sum(word in known for word in words) for language, known in languages.items()}
    best, second = sorted(hits, key=lambda language: -hits[language])[:2]
    clear = hits[best] >= max(_FEWEST_HITS, _LEAST_SHARE * len(words)) and hits[best] >= _LEAST_LEAD * hits[second]
    return best if clear else None
